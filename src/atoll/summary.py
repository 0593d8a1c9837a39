"""The outcome of a run in one document: what summary.json holds."""

from collections.abc import Sequence
from typing import Any

from . import __version__
from .config import Config
from .evaluate import reached, select
from .ledger import Ledger, Line
from .settings import split_variant


def summarise(config: Config, ledger: Ledger, clients: int, digest: str) -> dict[str, Any]:
    lines, totals = ledger.lines, ledger.totals
    base, variant = split_variant(config.method)
    generic = [(line["round"], line["generic"]["global"]) for line in lines if line["generic"]]
    each = max(1, totals.participations)
    return {
        "method": base,
        "variant": variant,
        "label": config.label,
        "data": config.data,
        "partition": config.partition,
        "split": config.split,
        "models": list(config.models),
        "clients": clients,
        "rounds": ledger.round,
        "seed": config.seed,
        "backend": config.backend,
        "status": ledger.status,
        "personal": select([(line["round"], line["personal"]["post"]) for line in lines]),
        "personal_pre": select([(line["round"], line["personal"]["pre"]) for line in lines]),
        "generic": {"source": lines[-1]["generic"]["source"], **select(generic)} if generic else None,
        "bytes": {
            "up": totals.up,
            "down": totals.down,
            "per_client_round": {"up": totals.up / each, "down": totals.down / each},
        },
        "flops": {"clients": totals.client_flops, "server": totals.server_flops},
        "clock": _clock(lines, config.wait_free),
        "target": config.target and {"accuracy": config.target, "reached": reached(lines, config.target)},
        "seconds": totals.seconds,
        "digest": digest,
        "version": __version__,
    }


def _clock(lines: Sequence[Line], overlap: bool) -> dict[str, Any]:
    """Simulated seconds until the last personal model was there, and what overlap is worth in a round."""
    last = lines[-1]
    waiting, free = (last["clock"][name]["personal"] for name in ("waiting", "wait_free"))
    return {
        "seconds": free if overlap else waiting,
        "waiting": waiting,
        "wait_free": free,
        "round_time": {"waiting": waiting / last["round"], "wait_free": free / last["round"]},
        "speedup": waiting / free if free else 1.0,
    }
