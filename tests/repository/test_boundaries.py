"""The table of boundaries in the documentation is that of the attacks that `make test-redteam` carries out."""

import json

import pytest
from support.attacks import ATTACKS, BOUNDARIES
from support.paths import ROOT


def test_findings_of_the_last_run_cover_all_attacks() -> None:
    """`make test-redteam` writes the file again."""
    found = [{k: v for k, v in entry.items() if k != "got"} for entry in json.loads(BOUNDARIES.read_text())]

    assert found == [attack._asdict() for attack in ATTACKS.values()]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_carried_out(name: str) -> None:
    text = (ROOT / ATTACKS[name].test).read_text()

    assert f'"{name}"' in text
