"""Options that each method accepts, compared with those that it accepted when they were inferred and not declared.

``tests/verdicts.json`` was recorded before methods declared traits and roles, and for later methods when they came. A
difference must be listed in ``MENDS``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from atoll.config import Config
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from benchmarks.digests import SHORT

RECORDED: dict[str, list[str]] = json.loads((Path(__file__).parents[2] / "verdicts.json").read_text())
OPTIONS: dict[str, dict[str, Any]] = {
    "robust": {"robust": "median"},
    "sums": {"sums": "fixed"},
    "dp": {"dp": "8", "dp_seed": 1},
    "dpsgd": {"dp": "8", "dp_seed": 1, "optimiser": "dpsgd", "backend": "loop"},
    "gate": {"min_class_count": 10},
    "vmap": {"backend": "vmap"},
}
MENDS = {  # accepted or refused otherwise than before, and why
    ("fd", "sums"): "the server keeps the means of each client, which are single uploads",
}


def accepted(name: str) -> set[str]:
    found = set()
    for option, values in OPTIONS.items():
        try:
            build_setup(
                Config(name, **SHORT.get(name, {}) | values, clients=3, partition="iid", rounds=2, rows=300, public=50)
            )
        except AtollError:
            continue
        found.add(option)
    return found


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_verdicts_on_options_are_as_recorded_except_for_mends(name: str) -> None:
    different = accepted(name) ^ set(RECORDED[name])

    assert different == {option for method, option in MENDS if method == name}


def test_every_method_is_recorded() -> None:
    assert set(RECORDED) == set(_registry.methods())
