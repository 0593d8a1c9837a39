"""Rules of a site: reading site.yaml, plain words, and the form of scores that leave."""

from math import nan
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from atoll.cli import main
from atoll.deploy.site.rules import SiteRules, read_site_rules
from atoll.deploy.site.score_release import release_score
from atoll.errors import AtollError


def test_rules_are_read_with_defaults_for_the_rest() -> None:
    found = read_site_rules({"methods": ["fedavg"], "rounds": 5, "scores": False}, "site.yaml")

    assert found == SiteRules(methods=("fedavg",), rounds=5, scores="off")
    assert read_site_rules(None, "site.yaml") == SiteRules()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "'allow' has entries"),
        ({"round": 5}, "rounds"),
        ({"rounds": 0}, "at least 1"),
        ({"rounds": True}, "at least 1"),
        ({"epochs": 0.5}, "at least 1"),
        ({"hours": 0}, "at least 1"),
        ({"methods": "fedavg"}, "list of names"),
        ({"methods": [3]}, "list of names"),
        ({"code": {"x.py": 1}}, "list of names"),
        ({"scores": "all"}, "exact, off, rounded"),
    ],
)
def test_malformed_rules_are_refused_with_a_sentence(value: Any, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        read_site_rules(value, "site.yaml")


def test_rules_command_says_in_plain_words_what_a_server_may_ask_for(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(
        "name: north\ndata: rows.npz\nallow: {methods: [fedavg], epochs: 7, scores: off}\n"
    )

    found = CliRunner().invoke(main, ["deploy", "rules", str(tmp_path)])

    assert found.exit_code == 0
    assert "Methods: fedavg." in found.output
    assert "each training has at most 7 epochs. A request that takes more than 24 hours is given up." in found.output
    assert "Code outside of the package: none." in found.output
    assert "Scores leave the site not at all." in found.output
    assert "at least 10 samples" in found.output


@pytest.mark.parametrize(
    ("value", "rows", "wanted"),
    [
        (0.123456, 1000, 0.12),  # to 1 %
        (0.126, 1000, 0.13),
        (13 / 25, 25, 0.52),  # 1 / 25 = 0.04: 13 of 25 rows
        (0.5301, 25, 0.52),  # 13.25 of 25 rows
        (1.0, 30, 1.0),
        (1234.5, 100, 1200.0),  # no share: two digits
        (-0.0341, 100, -0.034),
    ],
)
def test_scores_are_rounded_to_one_percent_or_one_row(value: float, rows: int, wanted: float) -> None:
    found = release_score({"n": float(rows), "accuracy": value}, "rounded", 0)

    assert found == {"n": float(rows), "accuracy": pytest.approx(wanted)}


def test_scores_of_fewer_than_twenty_rows_are_withheld() -> None:
    score = {"n": 19.0, "accuracy": 0.5, "val": 0.5}

    assert release_score(score, "rounded", 20) == {"n": 19.0, "accuracy": None, "val": 0.5}
    assert release_score(score, "rounded", 19) == {"n": 19.0, "accuracy": None, "val": None}


def test_exact_scores_leave_as_they_are_and_no_score_leaves_when_off() -> None:
    score = {"n": 5.0, "accuracy": 0.2, "auc": nan}

    assert release_score(score, "exact", 0) == {"n": 5.0, "accuracy": 0.2, "auc": None}
    assert release_score(score, "off", 0) == {"n": 5.0, "accuracy": None, "auc": None}
    assert release_score(None, "exact", 0) is None
