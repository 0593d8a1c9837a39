"""The table of boundaries in the documentation is that of the attacks that `make test-redteam` carries out."""

import pytest
from support.attacks import ATTACKS, to_markdown
from support.paths import ROOT


def test_table_of_boundaries_lists_all_attacks() -> None:
    assert to_markdown() in (ROOT / "docs" / "explanation-security.md").read_text()


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_carried_out(name: str) -> None:
    text = (ROOT / ATTACKS[name].test).read_text()

    assert f'"{name}"' in text
