"""Reading runs back, the figures, the table and the page."""

import math
import re
from collections import Counter
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from support.run_files import make_comparison, make_run

from atoll.errors import AtollError
from atoll.report import figures, html, pictures, plots, style, table
from atoll.report.figures import metrics
from atoll.report.groups import groups, settings
from atoll.report.notes import run_notes
from atoll.report.terminal_table import print_table
from atoll.report.wording import size
from atoll.storage.run_reader import FILES, find, load


def drawn(fig: Figure) -> Figure:
    FigureCanvasAgg(fig).draw()
    return fig


def lines_of(fig: Figure, colour: str, dashed: bool = False) -> list[Any]:
    """The lines of one colour; matplotlib calls every custom dash `--`."""
    wanted = "--" if dashed else "-"
    return [
        line
        for line in fig.axes[0].lines
        if matplotlib.colors.same_color(line.get_color(), colour) and line.get_linestyle() == wanted
    ]


# -- reading -------------------------------------------------------------------------------------------------------


def test_load_reads_every_file(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "r", seed=4))
    assert (run.label, run.seed, run.status) == ("dcpfl", 4, "finished")
    assert [m["round"] for m in run.metrics] == [1, 2, 3]
    assert run.clients.num_rows == 12
    assert run.holdings["classes"] == ["cat", "dog"]
    assert run.config["method"]["lam"] == 1.0


def test_find_looks_two_levels_down_and_gives_each_run_once(tmp_path: Path) -> None:
    one = make_run(tmp_path / "runs" / "demo" / "a-seed0")
    two = make_run(tmp_path / "runs" / "b-seed0")
    make_run(tmp_path / "runs" / "x" / "y" / "too-deep")
    make_run(tmp_path / "runs" / ".hidden")
    make_run(one / "checkpoint")  # below a run nothing is a run
    assert find([tmp_path / "runs", one]) == [two, one]


def test_find_names_the_directory_without_runs(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"No run in .*summary\.json"):
        find([tmp_path])


def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "half")
    (run_dir / "summary.json").unlink()
    assert find([tmp_path]) == [run_dir]
    with pytest.raises(AtollError, match=re.escape(f"atoll run --resume {run_dir}")):
        html.write([tmp_path], tmp_path / "report.html")


@pytest.mark.parametrize("name", [name for name in FILES if name != "summary.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    run_dir = make_run(tmp_path / "r")
    (run_dir / name).unlink()
    with pytest.raises(AtollError, match=rf"{re.escape(name)} is missing\. Run it again"):
        load(run_dir)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", "{", "not JSON"),
        ("summary.json", "[]", "named entries"),
        ("summary.json", "{}", "no entry 'label'"),
        ("metrics.jsonl", '{"round": 1', r"line 1, is damaged"),
        ("metrics.jsonl", '{"round": "one"}', "entry 'round' is 'one'"),
        ("clients.parquet", "rubbish", "not a Parquet table"),
        ("holdings.json", "{}", "no entry 'name'"),
        ("config.yaml", "a: [", "not YAML"),
        ("config.yaml", "", "named entries"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    run_dir = make_run(tmp_path / "r")
    (run_dir / name).write_text(text)
    with pytest.raises(AtollError, match=rf"{re.escape(name)}.*{message}"):
        load(run_dir)


def test_holdings_must_be_a_table_of_clients_by_classes(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="'val' is not a table of 4 clients by 2 classes"):
        load(make_run(tmp_path / "r", holdings={"val": [[1, 2]]}))


def test_clients_must_have_the_columns(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "r")
    pyarrow.parquet.write_table(pyarrow.table({"round": [1], "client": ["a"]}), run_dir / "clients.parquet")
    with pytest.raises(AtollError, match="no column 'accuracy'"):
        load(run_dir)


# -- grouping ------------------------------------------------------------------------------------------------------


def test_means_over_seeds_match_hand_computed_values(tmp_path: Path) -> None:
    """0.90, 0.92, 0.97: mean 0.93; deviations -0.03, -0.01, 0.04; (9 + 1 + 16)e-4 / (3 - 1) = 0.0013; root 0.036056."""
    first = groups(make_comparison(tmp_path))[0]
    stat = first.stat("personal.best_by_val")
    assert (first.name, first.seeds) == ("dcpfl", (0, 1, 2))
    assert stat is not None
    assert stat.mean == pytest.approx(0.93)
    assert stat.std == pytest.approx(0.0360555, abs=1e-7)


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    (only,) = groups([load(make_run(tmp_path / "r"))])
    assert only.stat("personal.best_by_val") == (0.7, None)


def test_mean_is_none_if_a_seed_has_no_value(tmp_path: Path) -> None:
    runs = [load(make_run(tmp_path / str(s), seed=s, by_val=v)) for s, v in enumerate((0.7, math.nan))]
    (only,) = groups(runs)
    assert only.stat("personal.best_by_val") is None
    assert only.stat("personal.final") is not None


def test_runs_with_other_settings_are_separate_groups(tmp_path: Path) -> None:
    runs = [
        load(make_run(tmp_path / f"{lam}-{seed}", seed=seed, by_val=lam, config={"method": {"lam": lam}}))
        for lam in (0.1, 0.9)
        for seed in (0, 1)
    ]
    assert [(g.name, g.seeds) for g in groups(runs)] == [("dcpfl (lam=0.9)", (0, 1)), ("dcpfl (lam=0.1)", (0, 1))]


def test_backend_and_paths_do_not_separate_seeds(tmp_path: Path) -> None:
    runs = [
        load(make_run(tmp_path / str(seed), seed=seed, config={"backend": backend, "data_dir": f"/data/{seed}"}))
        for seed, backend in enumerate(("loop", "process"))
    ]
    assert [g.seeds for g in groups(runs)] == [(0, 1)]


def test_repeated_seed_is_not_a_further_seed(tmp_path: Path) -> None:
    runs = [load(make_run(tmp_path / name, seed=7)) for name in ("first", "again")]
    assert sorted(g.name for g in groups(runs)) == ["dcpfl [again]", "dcpfl [first]"]


def test_different_data_are_not_compared(tmp_path: Path) -> None:
    runs = [load(make_run(tmp_path / data, data=data)) for data in ("digits", "wine")]
    assert [[run.summary["data"] for run in part] for part in settings(runs)] == [["digits"], ["wine"]]
    assert {g.name for g in groups(runs)} == {"dcpfl (data=digits)", "dcpfl (data=wine)"}


# -- the table -----------------------------------------------------------------------------------------------------


def test_rows_are_in_percent_and_the_best_comes_first(tmp_path: Path) -> None:
    rows = table.rows(make_comparison(tmp_path))
    assert [row.name for row in rows] == ["dcpfl", "local", "fedavg", "majority"]
    texts = {column.field: table.cell(rows[0], column) for column in table.COLUMNS}
    assert texts == {
        "best_by_val": "93.00 ± 3.61",
        "p": "–",
        "final": "60.00 ± 0.00",
        "best": "70.00 ± 0.00",
        "worst_decile": "25.00 ± 0.00",
        "generic": "–",
        "mb_up": "1.50",
        "mb_down": "0.0204",
        "gflops": "12.3k",
        "simulated": "–",
        "seconds": "75.2",
    }
    assert table.format_score(rows[2].generic) == "55.00 ± 0.00"


def test_rows_have_the_p_value_against_the_best_corrected_for_two_comparisons(tmp_path: Path) -> None:
    """Against local: gaps 25, 27, 32; mean 28, deviation sqrt((9 + 1 + 16) / 2) = 3.6056, error 2.0817, t = 13.451 with
    two degrees of freedom: p = 1 - t / sqrt(2 + t^2) = 0.00548. Against fedavg: mean 33, t = 15.852, p = 0.00396. Holm
    doubles the smaller one, 0.00792, and the larger may not be below it."""
    rows = table.rows(make_comparison(tmp_path))

    assert [row.p for row in rows] == [None, pytest.approx(0.00792, abs=1e-5), pytest.approx(0.00792, abs=1e-5), None]
    assert "p" in [column.field for column in table.columns(rows)]


def test_one_seed_has_no_p_value(tmp_path: Path) -> None:
    rows = table.rows(make_comparison(tmp_path, seeds=1))

    assert [row.p for row in rows] == [None] * 4
    assert "p" not in [column.field for column in table.columns(rows)]


def test_last_row_is_the_majority_class(tmp_path: Path) -> None:
    """Clients hold 1, 2 then 4, 5 then 7, 8 then 10, 11 rows: 2/3, 5/9, 8/15 and 11/21 are of the more frequent class,
    on average 0.56984; the worst of four is 0.52381. All three seeds have the same rows."""
    row = table.rows(make_comparison(tmp_path))[-1]

    assert (row.name, row.is_method, row.seeds) == ("majority", False, (0, 1, 2))
    assert row.best_by_val == (pytest.approx(56.984, abs=1e-3), 0.0)
    assert row.worst_decile == (pytest.approx(52.381, abs=1e-3), 0.0)
    assert row.generic is None


def test_runs_on_different_data_have_no_majority_row(tmp_path: Path) -> None:
    runs = [load(make_run(tmp_path / data, data=data)) for data in ("digits", "wine")]

    assert all(row.is_method for row in table.rows(runs))


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0, "0"),
        (0.00123, "0.00123"),
        (0.4, "0.400"),
        (9.996, "10.0"),
        (345.4, "345"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (12_345, "12.3k"),
        (4.56e6, "4.56M"),
        (None, "–"),
    ],
)
def test_quantities_have_three_digits(x: float | None, text: str) -> None:
    assert table.quantity(x) == text


def test_row_remarks_unfinished_runs(tmp_path: Path) -> None:
    runs = [
        load(make_run(tmp_path / str(s), seed=s, status=status))
        for s, status in enumerate(("finished", "diverged", "diverged"))
    ]
    assert table.rows(runs)[0].remark == "2 of 3 diverged"
    assert table.rows(runs[1:2])[0].remark == "diverged"


def test_column_with_one_value_has_no_leader(tmp_path: Path) -> None:
    rows = table.rows(make_comparison(tmp_path))
    by_val, generic = (next(c for c in table.COLUMNS if c.field == field) for field in ("best_by_val", "generic"))
    assert table.leaders(rows, by_val) == {"dcpfl"}
    assert table.leaders(rows, generic) == set()


def printed(rows: list[table.Row], width: int) -> str:
    console = Console(width=width, file=StringIO())
    print_table(console, rows)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_printed_table_fits_100_columns_with_every_number_whole(tmp_path: Path) -> None:
    text = printed(table.rows(make_comparison(tmp_path)), 100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert "Not shown" not in text
    row = next(line for line in text.splitlines() if line.startswith("dcpfl"))
    assert row.split() == [
        "dcpfl", "3", "93.00±3.61", "60.00±0.00", "70.00±0.00", "25.00±0.00", "–", "1.50", "0.0204", "12.3k", "75.2",
    ]  # fmt: skip


def test_long_name_folds_before_a_column_is_dropped(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / str(seed), "fedavg_ft:no-calibration", seed, by_val=(0.90, 0.92, 0.97)[seed], generic=0.5)
    text = printed(table.rows([load(path) for path in find([tmp_path])]), 100)
    assert "fedavg_ft:no-c" in text
    assert "alibration" in text
    assert "12.3k" in text
    assert max(map(len, text.splitlines())) <= 100


def test_narrow_terminal_drops_columns_and_names_them(tmp_path: Path) -> None:
    text = printed(table.rows(make_comparison(tmp_path)), 64)
    assert max(map(len, text.splitlines())) <= 64
    assert "93.00±3.61" in text
    assert "12.3k" not in text
    assert "Not shown at this width: GFLOPs, s, best" in text


def test_markup_in_a_name_is_printed_literally(tmp_path: Path) -> None:
    rows = table.rows([load(make_run(tmp_path / "r", "[red]x[/red]", status="diverged"))])
    text = printed(rows, 100)
    assert "[red]x[/red]*" in text
    assert "* [red]x[/red]: diverged" in text


# -- the figures ---------------------------------------------------------------------------------------------------


def test_curves_show_mean_and_range_over_seeds(tmp_path: Path) -> None:
    """Seeds 0.5, 0.7, 0.6 and 0.7, 0.7, 0.8 by round: mean 60, 70, 70 %, from 50, 70, 60 to 70, 70, 80 %."""
    runs = [
        load(make_run(tmp_path / "0", seed=0, generic=0.4)),
        load(make_run(tmp_path / "1", seed=1, generic=0.6, accuracies=(0.7, 0.7, 0.8))),
    ]
    fig = figures.draw("curves", runs)
    (personal,) = lines_of(fig, style.colour(0))
    (generic,) = lines_of(fig, style.colour(0), dashed=True)
    assert personal.get_xdata().tolist() == [1, 2, 3]
    assert personal.get_ydata() == pytest.approx([60, 70, 70])
    assert generic.get_ydata() == pytest.approx([50, 50, 50])
    band = fig.axes[0].collections[0].get_paths()[0].vertices
    ends = {t: (min(band[band[:, 0] == t, 1]), max(band[band[:, 0] == t, 1])) for t in (1, 2, 3)}
    assert ends[1] == pytest.approx((50, 70))
    assert ends[2] == pytest.approx((70, 70))
    assert ends[3] == pytest.approx((60, 80))


def test_an_average_of_personal_models_is_not_drawn_as_a_generic_model(tmp_path: Path) -> None:
    runs = [
        load(make_run(tmp_path / "a", "fedavg", by_val=0.7, generic=0.6)),
        load(make_run(tmp_path / "b", "local", by_val=0.6, generic=0.5, source="average")),
    ]
    fig = figures.draw("curves", runs)
    dashes = [
        line._dash_pattern[1] for line in (*lines_of(fig, style.colour(0), True), *lines_of(fig, style.colour(1), True))
    ]

    assert len(dashes) == 2
    assert dashes[0] != dashes[1]
    texts = [text.get_text() for text in fig.legends[0].get_texts()]
    assert texts[-3:] == ["personal models", "generic model", "~ average of personal models"]


def test_a_curve_ends_with_the_shortest_seed(tmp_path: Path) -> None:
    runs = [
        load(make_run(tmp_path / "0", seed=0)),
        load(make_run(tmp_path / "1", seed=1, accuracies=(0.1, 0.1), status="diverged", config={"rounds": 3})),
    ]
    (line,) = lines_of(figures.draw("curves", runs), style.colour(0))
    assert line.get_xdata().tolist() == [1, 2]


def test_boxes_mark_the_mean_of_the_round_chosen_by_validation(tmp_path: Path) -> None:
    """Validation chose round 2, with 70 %, clients 0 to 3 points above it: mean 71.5; the second seed is 10 points
    worse in that round, and 30 points better in the last one."""
    runs = [
        load(make_run(tmp_path / "0", seed=0)),
        load(make_run(tmp_path / "1", seed=1, accuracies=(0.5, 0.6, 0.9))),
    ]
    fig = figures.draw("boxes", runs)
    means = [line for line in fig.axes[0].lines if line.get_marker() == "D"]
    assert [line.get_xdata().tolist() for line in means] == [[pytest.approx(66.5)]]
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["dcpfl"]
    assert fig.axes[0].get_xlabel() == "test accuracy of a client in the round chosen by validation, %"


def test_a_client_without_test_rows_is_not_in_the_box(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "r")
    columns = {"round": [1, 1], "client": ["a", "b"], "accuracy": [0.5, None]}
    pyarrow.parquet.write_table(pyarrow.table(columns), run_dir / "clients.parquet")
    (mean,) = (line for line in figures.draw("boxes", [load(run_dir)]).axes[0].lines if line.get_marker() == "D")
    assert mean.get_xdata().tolist() == [pytest.approx(50)]


def test_accuracy_so_far_follows_validation(tmp_path: Path) -> None:
    """Validation 0.4, 0.6, 0.5 is best in round 2, so round 3 still counts with the 0.7 of round 2."""
    assert metrics.so_far(load(make_run(tmp_path / "r"))) == [0.5, 0.7, 0.7]
    assert metrics.so_far(load(make_run(tmp_path / "s", validation=(None, None, None)))) == [0.5, 0.7, 0.6]
    assert metrics.so_far(load(make_run(tmp_path / "t", validation=(0.4, None, 0.3)))) == [0.5, 0.5, 0.5]


def test_bytes_are_cumulative_and_a_method_without_traffic_is_a_level(tmp_path: Path) -> None:
    """1,000 up and 500 down in each round: 1,500, 3,000, 4,500 bytes."""
    runs = [load(make_run(tmp_path / "a")), load(make_run(tmp_path / "b", "local", by_val=0.6, sent=(0, 0)))]
    fig = figures.draw("bytes", runs)
    (line,) = lines_of(fig, style.colour(0))
    assert list(line.get_xdata()) == [1500, 3000, 4500]
    assert line.get_ydata() == pytest.approx([50, 70, 70])
    (level,) = (other for other in fig.axes[0].lines if other.get_linestyle() == ":")
    assert list(level.get_ydata()) == pytest.approx([70, 70])
    assert fig.axes[0].get_xscale() == "log"
    assert "sends nothing" in [text.get_text() for text in fig.legends[0].get_texts()]


@pytest.mark.parametrize(("n", "text"), [(12, "12 B"), (1500, "1.5 kB"), (1e6, "1 MB"), (2.5e9, "2.5 GB")])
def test_sizes_use_decimal_units(n: float, text: str) -> None:
    assert size(n) == text


def test_bubbles_have_areas_in_proportion_to_rows() -> None:
    fig = plots.holdings([[100, 0], [25, 100], [1, 0]], ["a", "b", "c"], ["cat", "dog"])
    area = {}
    for line in fig.axes[0].lines:
        for at in zip(line.get_xdata(), line.get_ydata(), strict=True):
            area[tuple(map(int, at))] = line.get_markersize() ** 2
    assert set(area) == {(0, 0), (1, 0), (1, 1), (2, 0)}  # (client, class); nothing where nothing is held
    assert area[0, 0] == pytest.approx(area[1, 1])
    assert area[0, 0] / area[1, 0] == pytest.approx(4)
    assert area[0, 0] / area[2, 0] == pytest.approx(100)


def test_a_narrow_chart_has_clients_down() -> None:
    fig = plots.holdings([[1, 0], [0, 0], [0, 0]], ["a", "b", "c"], ["cat", "dog"], style.NARROW)
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == ["a", "b", "c"]


def overlaps(labels: list[Any]) -> int:
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    return sum(a.overlaps(b) for a, b in pairwise(boxes))


@pytest.mark.parametrize("width", [style.WIDE, style.NARROW])
@pytest.mark.parametrize(("clients", "classes"), [(10, 2), (20, 10), (100, 100)])
def test_holdings_labels_do_not_overlap_or_leave_the_figure(clients: int, classes: int, width: float) -> None:
    """No tick labels touch, no text leaves the figure, and bubbles of a quarter of the largest keep to their cell."""
    counts = np.random.default_rng(0).integers(1, 5, (clients, classes)).tolist()
    names = [f"hospital number {i}" for i in range(clients)]
    fig = drawn(plots.holdings(counts, names, [f"class {i}" for i in range(classes)], width))
    ax = fig.axes[0]
    assert overlaps(ax.get_xticklabels()) == 0
    assert overlaps(ax.get_yticklabels()) == 0
    assert len({label.get_text() for label in ax.get_yticklabels()}) == len(ax.get_yticklabels())
    canvas = fig.bbox.padded(1)
    for artist in (ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels(), *fig.legends):
        box = artist.get_window_extent()
        assert canvas.contains(box.x0, box.y0), artist
        assert canvas.contains(box.x1, box.y1), artist
    cell = min(abs(ax.transData.transform((1, 1)) - ax.transData.transform((0, 0)))) * 72 / fig.dpi
    sizes = [line.get_markersize() for line in ax.lines]
    assert min(sizes) > 1.5  # points
    assert min(sizes) < cell


def test_thousands_of_clients_are_thinned_and_counted() -> None:
    fig = plots.holdings([[1]] * 3000, [str(i) for i in range(3000)], ["only"])
    assert fig.axes[0].get_xlabel() == "client (150 of 3,000 shown)"
    assert sum(len(line.get_xdata()) for line in fig.axes[0].lines) == 150


@pytest.mark.parametrize("width", [style.WIDE, style.NARROW])
@pytest.mark.parametrize("methods", [1, 24])
def test_legends_fit_the_figure_and_cover_no_panel(tmp_path: Path, methods: int, width: float) -> None:
    runs = [load(make_run(tmp_path / str(i), f"a-method-with-a-name-{i}", generic=0.5)) for i in range(methods)]
    for kind in ("curves", "bytes", "trade-off"):
        fig = drawn(figures.draw(kind, runs, width))
        box, canvas = fig.legends[0].get_window_extent(), fig.bbox.padded(1)
        assert canvas.contains(box.x0, box.y0)
        assert canvas.contains(box.x1, box.y1)
        assert not box.padded(-1).overlaps(fig.axes[0].get_window_extent())
        assert fig.axes[0].get_window_extent().width > 0.4 * fig.bbox.width


def test_thirty_five_methods_look_different() -> None:
    assert len({(style.colour(i), style.mark(i)) for i in range(35)}) == 35


def test_ten_classes_have_ten_colours_that_are_far_apart_and_the_legend_says_what_they_are() -> None:
    """Distances in red, green and blue, each from 0 to 255; the nearest two of the palette are over 60 apart."""
    colours = [matplotlib.colors.to_rgb(style.class_look(c)["color"]) for c in range(10)]
    nearest = min(math.dist(a, b) for i, a in enumerate(colours) for b in colours[:i])
    assert 255 * nearest > 60
    assert len({tuple(style.class_look(c).values()) for c in range(50)}) == 50

    xy = np.random.default_rng(0).normal(size=(10, 2))
    fig = plots.points([plots.Cloud("a", "", xy, np.arange(10))], [f"class {c}" for c in range(10)])

    assert fig.legends[0].get_title().get_text() == "class"
    shown = {matplotlib.colors.to_rgb(line.get_color()) for line in fig.axes[0].lines}
    assert len(shown) == 10


def test_drawing_does_not_change_matplotlib_settings(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    style.inline_svg(figures.draw("curves", [load(make_run(tmp_path / "r"))]))
    assert dict(matplotlib.rcParams) == before


def test_save_by_extension(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "r"))
    png = plots.save(figures.draw("boxes", [run]), tmp_path / "new" / "a.png")
    svgs = [plots.save(figures.draw("boxes", [run]), tmp_path / name).read_bytes() for name in ("a.svg", "b.SVG")]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert svgs[0] == svgs[1]
    assert b"<svg" in svgs[0]
    assert b"<text" not in svgs[0]
    with pytest.raises(AtollError, match=r"\.png or \.svg"):
        plots.save(figures.draw("boxes", [run]), tmp_path / "a.gif")


def ids(page: str) -> list[str]:
    return re.findall(r'\sid="([^"]+)"', page)


def test_inline_pictures_share_a_page(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "r"))
    page = "".join(
        (
            style.inline_svg(figures.draw("curves", [run])),
            style.inline_svg(figures.draw("boxes", [run])),
            style.inline_svg(figures.draw("boxes", [run]), "again"),
        )
    )
    assert max(Counter(ids(page)).values()) == 1
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', page)
    assert used
    assert set(used) <= set(ids(page))
    assert "<metadata" not in page
    assert "<style" not in page
    assert f"var(--series-0, {style.colour(0)})" in page


def test_labels_are_escaped_in_inline_svg() -> None:
    """Neither mathematics nor tags nor anything that looks like an id or a colour."""
    classes = ["$x^$ & <b>", 'id="x" #0072b2']
    svg = style.inline_svg(plots.holdings([[1, 2]], ["a"], classes))
    assert "$x^$ &amp; &lt;b&gt;" in svg
    assert 'id="x" #0072b2' in svg.replace("&quot;", '"')


# -- the page ------------------------------------------------------------------------------------------------------

VOID = {"meta", "link", "br", "hr", "img", "input", "source", "wbr"}


class Reader(HTMLParser):
    """Text and tags of a page; a tag that is not closed, or closes another, is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("comparison")
    make_comparison(root)
    return html.write([root], root / "report.html").read_text()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of words only: pictures take most of the time."""
    monkeypatch.setattr(
        pictures, "draw_picture", lambda draw, name: pictures.Picture(Markup("<svg></svg>"), Markup("<svg></svg>"))
    )


def test_page_contains_the_numbers(page: str) -> None:
    text = Reader(page).text
    assert "3 methods on digits" in text
    assert "9 runs, all finished" in text
    assert "dcpfl reaches 93.00 ± 3.61 % personal accuracy, 28.00 points ahead of local (p 0.0079)." in text
    assert "4 clients (partition dirichlet:0.1, split client_811), 3 rounds, models cnn1, cnn2" in text
    row = " ".join(text[text.index("dcpfl 3 93.00") :].split()[:23])
    assert row.startswith("dcpfl 3 93.00 ± 3.61 – 60.00 ± 0.00 70.00 ± 0.00 25.00 ± 0.00 – 1.5 MB 20.4 kB 12.3k – 75.2")
    assert "best by validation that of the round with the highest validation accuracy" in text
    assert "Nothing out of the ordinary" in text


def test_the_page_has_every_section_and_picture(page: str) -> None:
    reader = Reader(page)
    sections = [value for tag, name, value in reader.attributes if (tag, name) == ("section", "id")]
    assert sections == [
        "gains",
        "comparison",
        "curves",
        "clients",
        "holdings",
        "bytes",
        "trade-off",
        "notes",
        "settings",
        "files",
    ]
    assert reader.tags["figure"] == 5 + 3  # five charts, and holdings for each of three seeds
    assert max(Counter(ids(page)).values()) == 1
    for name in FILES:
        assert name in reader.text
    assert "dcpfl-seed0" in reader.text
    assert "lam: 1.0" in reader.text
    assert reader.text.count("seeds 0, 1, 2") == 3  # the settings of each method, once


def test_page_requests_nothing_from_the_network(page: str) -> None:
    reader = Reader(page)
    assert set(re.findall(r"https?://[^\"'\s<)]*", page)) <= {"http://www.w3.org/2000/svg"}
    assert not {"link", "img", "iframe", "object", "embed", "audio", "video"} & set(reader.tags)
    references = [value for _, name, value in reader.attributes if name in ("src", "href", "srcset", "action")]
    assert references
    assert all(value.startswith("#") for value in references)
    assert "@import" not in page
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", page))
    assert "default-src 'none'" in page


def test_page_has_dark_colours_and_narrow_figures(page: str) -> None:
    dark = page[page.index("prefers-color-scheme: dark") :]
    for name, colour in style.variables(dark=True).items():
        assert f"{name}: {colour};" in dark
    assert page.count('class="scroll wide"') == page.count('class="scroll narrow"') == 8
    tables = [m.start() for m in re.finditer("<table", page)]
    assert all(re.search(r'<div class="scroll"[^>]*>$', page[:at]) for at in tables)


def test_page_is_deterministic(page: str, tmp_path: Path) -> None:
    make_comparison(tmp_path / "runs")
    again = html.write([tmp_path / "runs"], tmp_path / "runs" / "report.html").read_text()
    config = re.compile(r"<pre>.*?</pre>", re.DOTALL)  # tells the directory
    assert config.sub("", again) == config.sub("", page)


def test_markup_in_a_run_is_escaped_on_the_page(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    make_run(
        tmp_path / "a<u>",
        label=evil,
        data=evil,
        partition=evil,
        split=evil,
        models=[evil],
        digest=evil,
        version=evil,
        status=evil,
        clients=(evil, "b"),
        classes=(evil, "c"),
        rejected={1: [evil, {"client": evil, "reason": evil}]},
        config={"x": evil, evil: 1},
        holdings={"name": evil, "notes": [evil]},
    )
    reader = Reader(html.write([tmp_path], tmp_path / "report.html").read_text())
    kinds = [(name, value) for tag, name, value in reader.attributes if tag == "script" and name != "id"]
    assert Counter(kinds) == {("type", "module"): 1, ("type", "application/json"): reader.tags["script"] - 1}
    assert reader.tags["u"] == 0
    assert "<script>alert(1)</script>" in reader.text
    assert not [name for _, name, _ in reader.attributes if name.startswith("on")]


def test_one_run_makes_a_page(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "r", accuracies=(0.5,), by_val=0.5)
    out = html.write([run_dir], tmp_path)
    reader = Reader(out.read_text())
    assert out == tmp_path / "report.html"
    assert "dcpfl on digits" in reader.text
    assert "dcpfl reaches 50.00 % personal accuracy." in reader.text
    assert reader.tags["figure"] == 5


@pytest.mark.usefixtures("undrawn")
def test_headline_reports_a_lead_within_the_spread(tmp_path: Path) -> None:
    """0.60 and 0.70 spread by 0.0707; a lead of one point over 0.64 says little."""
    for seed, by_val in enumerate((0.6, 0.7)):
        make_run(tmp_path / f"a{seed}", "a", seed, by_val=by_val)
        make_run(tmp_path / f"b{seed}", "b", seed, by_val=0.64)
    text = Reader(html.write([tmp_path], tmp_path / "r.html").read_text()).text
    # Gaps of -4 and 6: mean 1, error 5, t = 0.2 with one degree of freedom: p = 1 - 2 atan(0.2) / pi = 0.874.
    assert "1.00 points ahead of b (less than the spread over seeds, p 0.87)." in text


@pytest.mark.usefixtures("undrawn")
def test_headline_compares_the_best_with_the_next_and_with_training_alone(tmp_path: Path) -> None:
    for label, by_val in (("a", 0.9), ("b", 0.8), ("c", 0.75), ("local", 0.7)):
        make_run(tmp_path / label, label, by_val=by_val)
    text = Reader(html.write([tmp_path], tmp_path / "r.html").read_text()).text
    assert (
        "a reaches 90.00 % personal accuracy, 10.00 points ahead of b (on a single seed) "
        "and 20.00 points ahead of local (on a single seed)." in text
    )


@pytest.mark.usefixtures("undrawn")
def test_captions_tell_averages_from_generic_models(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "local", generic=0.4, source="average")
    text = Reader(html.write([tmp_path], tmp_path / "r.html").read_text()).text
    assert "the server's one model" not in text
    assert "the average of the personal models on the test samples of all clients" in text
    assert "~40.00 %" in text  # on the card of the generic model


@pytest.mark.usefixtures("undrawn")
def test_each_data_set_has_its_own_table_and_holdings(tmp_path: Path) -> None:
    for label in ("a", "b"):
        make_run(tmp_path / f"{label}-digits", label)
        make_run(tmp_path / f"{label}-wine", label, data="wine", holdings={"name": "other"})
    reader = Reader(html.write([tmp_path], tmp_path / "r.html").read_text())
    assert "2 methods on digits, wine" in reader.text
    assert reader.tags["figure"] == 2 * 4 + 2
    assert "wine, dirichlet:0.1, 4 clients, seed 0" in reader.text
    assert reader.text.count("Personal accuracy, %") == 2


def test_note_on_the_data_of_all_seeds_is_written_once(tmp_path: Path) -> None:
    for seed in range(3):
        notes = ["Inferred as number: age.", *(["Client a has no column dose."] if seed == 1 else [])]
        make_run(tmp_path / f"{seed}", seed=seed, holdings={"name": f"h{seed}", "notes": notes})

    found = run_notes([load(tmp_path / f"{seed}") for seed in range(3)])

    assert found == [
        ("digits, dirichlet:0.1, 4 clients, seeds 0 to 2", "Inferred as number: age."),
        ("digits, dirichlet:0.1, 4 clients, seed 1", "Client a has no column dose."),
    ]


@pytest.mark.usefixtures("undrawn")
def test_notes_on_the_same_runs_have_one_heading(tmp_path: Path) -> None:
    notes = ["Inferred as number: age.", "Few different whole numbers: ca."]
    make_run(tmp_path / "0", holdings={"name": "h", "notes": notes})

    section = html.write([tmp_path], tmp_path / "r.html").read_text().partition('<section id="notes">')[2]
    section = section.partition("</section>")[0]

    assert section.count("digits, dirichlet:0.1, 4 clients, seed 0") == 1
    assert all(f"<li>{note}</li>" in section for note in notes)


@pytest.mark.usefixtures("undrawn")
def test_page_shows_bytes_in_a_readable_unit(tmp_path: Path) -> None:
    make_run(tmp_path / "0")

    text = html.write([tmp_path], tmp_path / "r.html").read_text()

    assert "Bytes per client and round</span></th>" in text
    assert "<td>1.5\N{NO-BREAK SPACE}MB</td><td>20.4\N{NO-BREAK SPACE}kB</td>" in text


@pytest.mark.usefixtures("undrawn")
def test_long_list_of_directories_is_folded(tmp_path: Path) -> None:
    for seed in range(13):
        make_run(tmp_path / f"{seed}", seed=seed)

    text = html.write([tmp_path], tmp_path / "r.html").read_text()

    assert "<summary>13 directories</summary>" in text


@pytest.mark.usefixtures("undrawn")
def test_notes_report_unfinished_runs_and_rejected_uploads(tmp_path: Path) -> None:
    make_run(
        tmp_path / "a",
        status="diverged",
        config={"rounds": 30},
        rejected={2: ["c", {"client": "d", "round": 2, "field": "mu", "reason": "not finite"}]},
    )
    make_run(
        tmp_path / "b",
        "fedgh",
        status="diverged",
        config={"rounds": 30},
        holdings={"notes": ["client b got 3 rows."]},
    )
    make_run(tmp_path / "c", "fedmd", holdings={"name": "mended", "notes": ["client c got 2 rows."]})
    text = Reader(html.write([tmp_path], tmp_path / "r.html").read_text()).text
    assert "3 runs: 2 diverged, 1 finished" in text
    assert "dcpfl, seed 0 diverged after round 3 of 30." in text
    assert "fedgh, seed 0 diverged after round 3 of 30. Its numbers are those of the rounds it reached. " in text
    assert "2 uploads rejected (round 2: client c; round 2: client d (mu: not finite))." in text
    assert "client c got 2 rows." in text


def test_a_run_that_never_evaluated_is_reported(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "r", by_val=None, status="diverged")
    (run_dir / "metrics.jsonl").write_text("")
    empty = pyarrow.table({"round": pyarrow.array([], "int64"), "client": [], "accuracy": pyarrow.array([], "float64")})
    pyarrow.parquet.write_table(empty, run_dir / "clients.parquet")
    text = Reader(html.write([run_dir], tmp_path / "r.html").read_text()).text
    assert "diverged before the first evaluation of 3" in text
    assert "No run has an accuracy chosen by validation yet." in text
