"""Tables as files."""

from pathlib import Path

import pytest

from atoll.errors import AtollError
from atoll.report.sheets import Sheet, as_csv, export, latex, markdown

SHEET = Sheet("title", ["method", "accuracy, %"], [["dcpfl|x", "81.0 ± 1.3"], ["fedavg_ft", "–"]])


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
