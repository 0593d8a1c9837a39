"""``atoll check``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.paths import ROOT

EXAMPLE = ROOT / "examples" / "new_method.py"
IMPURE = """
from dataclasses import dataclass
from atoll.core import Client, Key, Nothing, Round
from atoll.methods.fedavg import FedAvg, Global, Update

@dataclass(frozen=True)
class Impure(FedAvg):
    def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Update, Nothing]:
        client.x.mul_(0.5)
        return super().client_update(down, state, client, r, k)
"""


def test_check_of_the_example_holds_and_ends_with_exit_code_0(atoll: Callable[..., Any]) -> None:
    found = atoll("check", EXAMPLE, "--json")

    verdicts = {finding["law"]: finding["verdict"] for finding in json.loads(found.stdout)}
    assert set(verdicts.values()) == {"holds"}


def test_check_of_an_impure_method_names_the_law_and_ends_with_exit_code_1(
    atoll: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "impure.py"
    path.write_text(IMPURE)

    found = atoll("check", path, code=1)

    assert "samples are changed in place" in " ".join(found.stdout.split())


def test_check_of_a_missing_file_is_a_mistake_and_no_broken_law(atoll: Callable[..., Any]) -> None:
    found = atoll("check", "missing.py", code=2)

    assert "There is no method file 'missing.py'" in found.stderr
