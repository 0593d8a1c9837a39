"""What is inferred from a table, left out and filled is in the configuration, the report and the audit of a run."""

from pathlib import Path
from typing import Any

import yaml
from support.hospital_tables import write_table, write_unlike


def test_notes_on_a_table_are_in_config_report_and_audit(tmp_path: Path, atoll: Any) -> None:
    data, out = write_table(tmp_path / "all.csv"), tmp_path / "run"
    with data.open("a") as file:
        file.write("40,5.0,red,2020-01-01,,north\n")

    atoll("run", "fedavg", "--data", f"{data}?label=outcome&owner=hospital", "--rounds", "1", "--out", out)

    comments = [line[2:] for line in (out / "config.yaml").read_text().splitlines() if line.startswith("# ")]
    assert any(line.startswith("1 rows without a label were dropped") and "csv line 182" in line for line in comments)
    assert any(line.startswith("Inferred as number: ") for line in comments)
    assert any(line.startswith("Empty cells, which are filled (--missing): ") for line in comments)
    report, audit = (out / "report.html").read_text(), atoll("audit", out).stdout
    before = atoll("audit", "fedavg", "--data", f"{data}?label=outcome&owner=hospital").stdout
    for line in comments:
        assert f"Data: {line}" in before
        assert line in report
        assert f"Data: {line}" in audit
    assert yaml.safe_load((out / "config.yaml").read_text())["method"] == "fedavg"


def test_columns_that_a_client_lacks_are_in_config_report_and_audit(tmp_path: Path, atoll: Any) -> None:
    data, out = f"{write_unlike(tmp_path / 'data')}?label=outcome", tmp_path / "run"
    said = "Client south has no column dose."

    atoll("run", "fedproto", "--data", data, "--columns", "own", "--rounds", "1", "--out", out)

    assert f"# {said}\n" in (out / "config.yaml").read_text()
    assert said in (out / "report.html").read_text()
    assert f"Data: {said}" in atoll("audit", out).stdout
    assert f"Data: {said}" in atoll("audit", "fedproto", "--data", data, "--columns", "own").stdout
