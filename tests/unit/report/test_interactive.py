"""The numbers and the script that make figures of a report interactive."""

import base64
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
from support.run_files import make_comparison, make_run

from atoll.report import html, interactive
from atoll.report.plots.lines import Axis, Line, LineChart, Panel, Up, lines


def page(tmp_path: Path) -> str:
    make_comparison(tmp_path)
    return html.write([tmp_path], tmp_path / "report.html").read_text()


def test_the_page_allows_only_the_script_that_it_holds(tmp_path: Path) -> None:
    text = page(tmp_path)

    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text.replace("&#39;", "'"))
    (source,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_the_script_imports_nothing_and_defines_each_name_once() -> None:
    source = interactive.script()

    assert not re.search(r"^(import|export)\b", source, re.MULTILINE)
    defined = Counter(re.findall(r"^(?:const|let|function|class) (\w+)", source, re.MULTILINE))
    assert {name for name, n in defined.items() if n > 1} == set()
    assert {"lines", "figure", "h"} <= defined.keys()


def test_the_numbers_of_curves_and_the_rows_of_the_table_are_in_the_page(tmp_path: Path) -> None:
    text = page(tmp_path)

    curves = text[text.index('id="curves"') :]
    (chart, *_) = re.findall(r'<script type="application/json">(.*?)</script>', curves)
    found = json.loads(chart)
    (line, *_) = found["panels"][0]["lines"]
    assert found["names"] == ["dcpfl", "local", "fedavg"]
    assert (line["name"], line["x"], line["y"]) == ("dcpfl", [1, 2, 3], [50, 70, 60])
    (rows,) = re.findall(r'<script type="application/json" id="rows">(.*?)</script>', text)
    (chapter,) = json.loads(rows)
    # Three seeds by validation: 0.90, 0.92 and 0.97.
    assert abs(chapter["rows"][0]["best_by_val"]["mean"] - 93) < 1e-9
    assert [row["name"] for row in chapter["rows"]] == ["dcpfl", "local", "fedavg", "majority"]


def test_a_name_cannot_end_the_script_element(tmp_path: Path) -> None:
    make_run(tmp_path / "r", "</script><b>bold</b>")

    text = html.write([tmp_path], tmp_path / "report.html").read_text()

    assert "</script><b>" not in text


def test_a_line_without_positions_is_a_level_and_bands_reach_over_seeds() -> None:
    level = Line("local", [], np.array([[0.2, 0.5]]), "dotted")
    seeds = Line("fedavg", [10, 20], np.array([[0.2, 0.4], [0.4, 0.8]]))
    chart = LineChart([Panel("", [level, seeds], goal=0.7)], Axis("bytes", log=True, in_bytes=True), Up("score"))

    (panel,) = json.loads(interactive.embed_chart(chart))["panels"]

    assert panel["goal"] == 70
    assert panel["lines"][0] == {"name": "local", "dash": "dotted", "level": 50}
    assert panel["lines"][1]["low"] == [20, 40]
    assert panel["lines"][1]["high"] == [40, 80]


def test_a_line_below_an_equal_one_is_wider() -> None:
    same = [Line(name, [1, 2], np.array([[0.2, 0.4]])) for name in ("first", "second")]
    other = Line("third", [1, 2], np.array([[0.2, 0.5]]))

    fig = lines([Panel("", [*same, other])], Axis("round"), Up("score"))

    widths = [line.get_linewidth() for line in fig.axes[0].lines]
    assert widths[0] > widths[1] == widths[2]
