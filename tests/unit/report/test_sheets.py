"""Tables as files, and whether two methods differ."""

from pathlib import Path

import pyarrow as pa
import pytest
from scipy.stats import wilcoxon

from atoll.errors import AtollError
from atoll.report.sheets import Sheet, as_csv, export, latex, markdown
from atoll.report.significance import paired
from atoll.storage.run_reader import Run

SHEET = Sheet("title", ["method", "accuracy, %"], [["dcpfl|x", "81.0 ± 1.3"], ["fedavg_ft", "–"]])


def run(seed: int, **accuracies: float) -> Run:
    clients = list(accuracies)
    rows = {"round": [1, 2] * len(clients), "client": [c for c in clients for _ in range(2)]}
    table = pa.table({**rows, "accuracy": [v for c in clients for v in (0.0, accuracies[c])]})
    return Run(Path(), {"seed": seed, "rounds": 2, "personal": {"best_by_val_round": 2}}, (), table, {}, {})


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    assert markdown(SHEET) == (
        "| method | accuracy, % |\n| --- | ---: |\n| dcpfl\\|x | 81.0 ± 1.3 |\n| fedavg_ft | – |\n"
    )


def test_csv_quotes_commas() -> None:
    assert as_csv(SHEET) == 'method,"accuracy, %"\ndcpfl|x,81.0 ± 1.3\nfedavg_ft,–\n'


def test_latex_escapes_special_characters() -> None:
    text = latex(SHEET)
    assert r"method & accuracy, \% \\" in text
    assert r"dcpfl|x & 81.0 $\pm$ 1.3 \\" in text
    assert r"fedavg\_ft & -- \\" in text
    assert text.count(r"\begin{tabular}{lr}") == text.count(r"\end{tabular}") == 1


def test_file_suffix_selects_the_format(tmp_path: Path) -> None:
    export(SHEET, tmp_path / "new" / "a.md")
    assert (tmp_path / "new" / "a.md").read_text() == markdown(SHEET)
    with pytest.raises(AtollError, match=r"\.tex"):
        export(SHEET, tmp_path / "a.pdf")


def test_paired_test_pairs_clients_of_the_same_seed() -> None:
    """Differences of 10, -5, 20 and 0 points, in the round that validation chose: mean 6.25."""
    ours = [run(0, a=0.6, b=0.5), run(1, a=0.9, b=0.3)]
    theirs = [run(1, a=0.7, b=0.3), run(0, a=0.5, b=0.55), run(2, a=0.0)]
    test = paired(ours, theirs)
    assert test is not None
    assert test.difference == pytest.approx(6.25)
    assert (test.pairs, test.ahead, test.behind) == (4, 2, 1)
    assert test.p == pytest.approx(wilcoxon([10, -5, 20, 0], zero_method="pratt").pvalue)


def test_paired_test_is_none_without_common_seeds_and_p_is_1_without_differences() -> None:
    assert paired([run(0, a=0.5)], [run(1, a=0.5)]) is None
    same = paired([run(0, a=0.5)], [run(0, a=0.5)])
    assert same is not None
    assert same.p == 1.0
