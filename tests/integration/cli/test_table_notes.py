"""What is inferred from a table, left out and filled is in the configuration, the report and the audit of a run."""

from pathlib import Path
from typing import Any

import yaml
from support.hospital_tables import write_table


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
    for line in comments:
        assert line in report
        assert f"Data: {line}" in audit
    assert yaml.safe_load((out / "config.yaml").read_text())["method"] == "fedavg"
