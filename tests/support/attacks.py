"""The attacks of tests/redteam: who tries what, what is allowed, and where the test is."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .paths import ROOT

# What each attack got in the last complete run; docs/build.py makes a table of it.
BOUNDARIES = ROOT / "docs" / "measured" / "boundaries.json"


class Attack(NamedTuple):
    """An attack on a real federation, with the outcome that is allowed."""

    who: str
    what: str
    allowed: str
    test: str


STRANGER, SITE, SERVER, ACCOUNT = "stranger", "registered site", "server", "another account of the server's machine"
_FILES = {STRANGER: "stranger", SITE: "site", SERVER: "server", ACCOUNT: "local_account"}


def _attack(who: str, what: str, allowed: str) -> Attack:
    return Attack(who, what, allowed, f"tests/redteam/test_{_FILES[who]}.py")


ATTACKS = {
    "closed": _attack(STRANGER, "Control, Runtime, register-node, unknown operations", "403"),
    "paths": _attack(STRANGER, "paths with `..`, `%2e`, queries, other case, absolute URIs", "400, 403 or 404"),
    "held": _attack(STRANGER, "600 connections held open", "a site's request is answered within a second"),
    "held-key": _attack(STRANGER, "400 connections that show a site's public key", "all sites are answered"),
    "order": _attack(SITE, "push-messages as an order to another site", "403"),
    "reply-as": _attack(SITE, "push-messages as a reply of another site", "403"),
    "apps": _attack(SITE, "get-run, get-fab, register-node", "403"),
    "large-reply": _attack(SITE, "an upload of 60 MB in place of 10 kB", "dropped, with less than 50 MB more memory"),
    "flood": _attack(SITE, "210 MB of objects that nobody asked for", "429 after about 100 MB in an hour"),
    "card": _attack(SITE, "a card whose model is a Python file", "the run ends, no import at the server"),
    "names": _attack(SERVER, "`begin` and `hello` with names that are paths", "refused by `rules`, no import"),
    "seed": _attack(SERVER, "`begin` with `dp_seed`", "refused"),
    "again": _attack(SERVER, "a second `begin` of a run with another epsilon", "refused"),
    "assess": _attack(SERVER, "twenty models to `assess` for one state", "one score"),
    "control": _attack(ACCOUNT, "Control on the loopback without the secret", "401"),
    "runtime": _attack(ACCOUNT, "Runtime on the loopback without the executor's secret", "401"),
    "tokens": _attack(ACCOUNT, "secrets and tokens in process lists during a run", "none"),
    "bundle": _attack(ACCOUNT, "an app of Flower started with a stolen secret", "runs neither at server nor sites"),
}  # fmt: skip


@dataclass
class Findings:
    """What each attack got."""

    got: dict[str, list[str]] = field(default_factory=dict)

    def note(self, attack: str, text: str) -> None:
        print(f"{ATTACKS[attack].who}: {ATTACKS[attack].what} -> {text}")
        self.got.setdefault(attack, []).append(text)

    @property
    def complete(self) -> bool:
        """True if every attack was carried out."""
        return self.got.keys() == ATTACKS.keys()

    def write(self, path: Path) -> str:
        """Write the findings as JSON, in the order of the attacks; return them as a table."""
        found = [
            attack._asdict() | {"got": ", ".join(dict.fromkeys(self.got[name]))}
            for name, attack in ATTACKS.items()
            if name in self.got
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        return "\n".join(f"{a['who']:38} {a['what'][:70]:72} {a['got']}" for a in found)
