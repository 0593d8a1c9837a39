"""Figures by kind: drawn from plain data, from runs, and from the models of runs."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from support.run_files import draw_no_report

from atoll.analysis.class_relations import Relations, WeightNorms, correlate_norms, relations, weight_norms
from atoll.analysis.embeddings import Features, embed, features, separation
from atoll.analysis.proxy_images import proxy_images
from atoll.analysis.timeline import simulate_schedule
from atoll.api import run_setup
from atoll.config import Config
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.inference.models import SavedRun, open_run
from atoll.report import figures, html, pictures, plots, style
from atoll.report.figures import metrics, models, sweeps
from atoll.report.figures.base import FigureSpec, RunsByCase, by_case, head, pair
from atoll.report.figures.sweeps import place
from atoll.simulation.clock import Clock, Times
from atoll.storage.run_reader import Run, load

CLASSES = [str(i) for i in range(10)]
ANY = np.random.default_rng(0)
ACCURACY = plots.Up("accuracy, %")
TINY: dict[str, Any] = {
    "data": "digits",
    "rows": 400,
    "clients": 3,
    "rounds": 1,
    "epochs": 1,
    "models": ("mlp:hidden=8",),
}


def make_stored_run(
    seed: int = 0,
    accuracies: Sequence[float] = (0.5, 0.7),
    sent: float = 1000.0,
    operations: float = 1e6,
    target: dict[str, Any] | None = None,
    seconds: Sequence[tuple[float, float]] = ((4.0, 2.0), (8.0, 4.0)),
    label: str = "dcpfl",
    data: str = "digits",
) -> Run:
    """A run in memory: accuracies by round, and simulated seconds with waiting and without."""
    lines = [
        {
            "round": t + 1,
            "personal": {"post": {"accuracy": a, "val": a}},
            "generic": None,
            "bytes": {"up": sent * (t + 1) / len(accuracies), "down": 0},
            "clock": {"waiting": {"personal": w}, "wait_free": {"personal": f}},
            "rejected": [],
        }
        for t, (a, (w, f)) in enumerate(zip(accuracies, seconds, strict=True))
    ]
    summary = {
        "label": label, "data": data, "partition": "iid", "split": "client_811", "models": ["mlp"], "clients": 2,
        "rounds": len(lines), "seed": seed, "status": "finished", "target": target,
        "personal": {"best_by_val": accuracies[-1], "final": accuracies[-1]}, "bytes": {"up": sent, "down": 0},
        "flops": {"clients": operations},
    }  # fmt: skip
    held = {"clients": ["a", "b"], "classes": ["x", "y"], "train": [[1, 2], [3, 0]]}
    rows = pa.table({"round": [1, 1], "client": ["a", "b"], "accuracy": [0.4, 0.6]})
    return Run(Path(), summary, tuple(lines), rows, held, {})


def drawn(fig: Figure) -> Figure:
    FigureCanvasAgg(fig).draw()
    return fig


# -- looks -------------------------------------------------------------------------------------------------------------


def some_figures(width: float) -> dict[str, Figure]:
    """One of each kind, with many panels and long names."""
    panels = [f"CIFAR-100, pathological, case {i}" for i in range(4)]
    names = [f"a method called {i}" for i in range(5)]
    y = ANY.random((2, 6))
    lines = [plots.Panel(p, [plots.Line(n, range(1, 7), y * i / 5) for i, n in enumerate(names, 1)]) for p in panels]
    dots = [plots.Dot(p, n, 10.0 ** (i + 3), i / 5, 10.0**i, i > 1) for p in panels[:2] for i, n in enumerate(names)]
    clouds = [
        plots.Cloud(p, "silhouette 0.12", ANY.random((40, 2)), np.arange(40) % 10, ANY.random((10, 2)))
        for p in panels[:2]
    ]
    maps = [
        [plots.Matrix(f"SL, {p}", ANY.random((10, 10))), plots.Matrix(f"CR, {p}", ANY.random((10, 10)))]
        for p in panels[:2]
    ]
    draws = [plots.Draw(panels[0], *ANY.dirichlet(np.ones(10), 2)) for _ in range(4)]
    bars = [
        plots.Bar(way, f"client {i}", what, t, t + 1)
        for way in panels[:2]
        for i in range(3)
        for t, what in enumerate(("download", "generic training", "upload"))
    ]
    return {
        "lines": plots.lines(lines, plots.Axis("clients in a round"), ACCURACY, {"dashed": "generic"}, width),
        "boxes": plots.boxes([plots.Box(p, n, ANY.random(9)) for p in panels[:2] for n in names], ACCURACY, width),
        "trade-off": plots.trade_off(dots, "bytes sent, up and down, until the target was reached", ACCURACY, width),
        "points": plots.points(clouds, CLASSES, width),
        "matrices": plots.matrices(maps, [f"class {c}" for c in CLASSES], width),
        "moduli": plots.moduli(draws, [f"class {c}" for c in CLASSES], width),
        "timeline": plots.timeline(bars, {way: [3.0] for way in panels[:2]}, width),
        "pixels": plots.pixels([plots.Pair("client 0", *ANY.random((2, 12, 8, 8, 1)))], "image", "enhanced", width),
    }  # fmt: skip


@pytest.mark.parametrize("width", [style.WIDE, style.NARROW])
def test_no_text_is_cut_and_no_legend_covers_a_panel(width: float) -> None:
    for name, fig in some_figures(width).items():
        all_of_it = drawn(fig).get_tightbbox()  # inches
        assert min(all_of_it.x0, all_of_it.y0) > -0.02, name
        assert all_of_it.x1 < fig.get_figwidth() + 0.02, name
        assert all_of_it.y1 < fig.get_figheight() + 0.02, name
        for legend in fig.legends:
            for ax in fig.axes:
                assert not legend.get_window_extent().padded(-2).overlaps(ax.get_window_extent()), name


def test_a_line_is_a_mean_with_a_band_and_keeps_its_colour_in_every_panel() -> None:
    """Seeds 0.2 and 0.4 at 1, 0.6 and 0.6 at 10: means 30 and 60 %, the band at 1 from 20 to 40."""
    two = plots.Line("B", [1, 10], np.array([[0.2, 0.6], [0.4, 0.6]]))
    one = plots.Line("A", [1, 10], np.array([[0.1, 0.2]]))
    panels = [plots.Panel("p", [one, two], goal=0.5), plots.Panel("q", [two])]
    first, second = plots.lines(panels, plots.Axis("x", log=True, each=True), plots.Up("y")).axes
    assert first.lines[1].get_ydata() == pytest.approx([30, 60])
    assert first.lines[1].get_color() == second.lines[0].get_color() == style.colour(1)
    assert first.lines[2].get_ydata() == pytest.approx([50, 50])
    band = first.collections[0].get_paths()[0].vertices
    assert sorted(set(np.round(band[band[:, 0] == 1, 1], 6))) == [20, 40]
    assert first.get_xscale() == "log"
    assert [t.get_text() for t in first.get_xticklabels()] == ["1", "10"]


def test_line_that_others_hide_is_wider_to_be_seen_below_them() -> None:
    """With means from 30 to 80 %, lines 0.05 points apart hide one another, and lines 5 points apart do not."""
    lower, hidden, far = (
        plots.Line(name, [1, 2], np.array([values]))
        for name, values in (("lower", [0.3, 0.8]), ("hidden", [0.3005, 0.8]), ("far", [0.35, 0.75]))
    )

    (ax,) = plots.lines([plots.Panel("", [lower, hidden, far])], plots.Axis("x"), plots.Up("y")).axes

    first, second, third = (line.get_linewidth() for line in ax.lines)
    assert first > second == third


def test_a_map_shows_its_numbers_and_thins_many_classes() -> None:
    few, many = np.eye(3), np.arange(100.0 * 100).reshape(100, 100) / 1e4
    shown, thinned = (
        np.asarray(
            plots.matrices([[plots.Matrix("SL", m)]], [str(i) for i in range(len(m))])
            .axes[0]
            .collections[0]
            .get_array()
        )
        for m in (few, many)
    )
    assert shown.reshape(3, 3) == pytest.approx(few)
    assert thinned.reshape(34, 34)[1, 2] == pytest.approx(many[3, 6])  # every third class


def test_weight_vectors_are_crosses() -> None:
    cloud = plots.Cloud(
        "", "", np.zeros((4, 2)), np.array([0, 0, 2, 2]), np.array([[1.0, 2.0], [9.0, 9.0], [3.0, 4.0]])
    )
    crosses = [line for line in plots.points([cloud], CLASSES).axes[0].lines if line.get_marker() == "X"]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in crosses] == [
        (1, 2),
        (3, 4),
    ]  # none for a class without rows


def test_contrary_classes_are_above_or_below_average_in_both() -> None:
    """Averages are 1/4: frequent and long, frequent and short, rare and long, rare and short."""
    draw = plots.Draw("", np.array([0.4, 0.4, 0.1, 0.1]), np.array([0.3, 0.2, 0.3, 0.2]))
    assert draw.contrary.tolist() == [True, False, False, True]


# -- from runs ---------------------------------------------------------------------------------------------------------


def test_by_case_groups_comparable_runs() -> None:
    shown = by_case(
        [
            make_stored_run(0),
            make_stored_run(1),
            make_stored_run(0, label="local", accuracies=(0.1, 0.2)),
            make_stored_run(0, data="mnist"),
        ]
    )
    assert [(*key, len(runs)) for key, runs in shown.items()] == [
        ("digits, iid, 2 clients", "dcpfl", 2),
        ("digits, iid, 2 clients", "local", 1),
        ("mnist, iid, 2 clients", "dcpfl", 1),
    ]
    assert pair(shown, "mnist, iid, 2 clients", "dcpfl") == "dcpfl: mnist, iid, 2 clients"


@pytest.mark.parametrize(
    ("case", "panel", "quantity", "number"),
    [
        ("CIFAR-10, 2 classes", "CIFAR-10", "classes", 2.0),
        ("CIFAR-100, 10 %", "CIFAR-100", "", 10.0),
        ("CIFAR-10, practical, mu=0.01", "CIFAR-10, practical", "mu", 0.01),
        ("epochs of the proxy=5", "", "epochs of the proxy", 5.0),
        ("filters=8-16", "", "filters", None),
        ("lr=1e-3", "", "lr", 0.001),
    ],
)
def test_position_in_a_sweep_is_read_from_the_case_name(
    case: str, panel: str, quantity: str, number: float | None
) -> None:
    assert place(case)[:2] == (panel, quantity)
    assert place(case).number == number


def test_a_sweep_has_a_panel_for_what_stands_before_and_orders_its_points() -> None:
    shown = {
        ("A, 10 classes", "m"): [make_stored_run(0, (0.1, 0.3)), make_stored_run(1, (0.1, 0.5))],
        ("A, 2 classes", "m"): [
            make_stored_run(0, (0.1, 0.8)),
            make_stored_run(1, (0.1, 0.6)),
            make_stored_run(2, (0.1, 0.1)),
        ],  # a seed too many
        ("B, 2 classes", "m"): [make_stored_run(0, (0.1, 0.9))],
    }
    (one,) = sweeps.sweep(shown, x="classes of each client")
    a, b = one.draw(style.WIDE).axes
    assert (a.get_title(loc="left"), b.get_title(loc="left")) == ("A", "B")
    assert list(a.lines[0].get_xdata()) == [2, 10]
    assert a.lines[0].get_ydata() == pytest.approx([70, 40])
    assert [d.name for d in sweeps.sweep({("mu=1", "m"): [make_stored_run()], ("lr=1", "m"): [make_stored_run()]})] == [
        "sweep-mu",
        "sweep-lr",
    ]


def test_sweep_by_option_or_setting_of_the_configuration() -> None:
    configs = [
        {"partition": "dirichlet:0.5", "settings": {"mu": 1}},
        {"partition": "dirichlet:10", "settings": {"mu": 2}},
    ]
    runs = [replace(make_stored_run(accuracies=(0.1, a)), config=c) for a, c in zip((0.3, 0.6), configs, strict=True)]
    shown = {("anything", f"dcpfl {i}"): [run] for i, run in enumerate(runs)}
    for by, places in (("partition", [0.5, 10]), ("mu", [1, 2])):
        (one,) = sweeps.sweep(shown, by=by)
        (line,) = one.draw(style.WIDE).axes[0].lines
        assert (list(line.get_xdata()), list(line.get_ydata())) == (places, pytest.approx([30, 60]))
    with pytest.raises(AtollError, match="tau"):
        sweeps.sweep(shown, by="tau")


def test_sweep_without_numbers_uses_names_as_ticks() -> None:
    shown: RunsByCase = {(f"filters={f}", "m"): [make_stored_run()] for f in ("4", "8-16")}
    (one,) = sweeps.sweep(shown)
    assert [t.get_text() for t in one.draw(style.WIDE).axes[0].get_xticklabels()] == ["4", "8-16"]


def test_a_trade_off_counts_to_the_target_or_to_the_end() -> None:
    """Areas are in proportion to operations: 4 to 1, so diameters 2 to 1."""
    reached = {"accuracy": 0.6, "reached": {"bytes": {"up": 300, "down": 100}, "flops": {"clients": 4e6}}}
    shown = {
        ("c", "there"): [make_stored_run(target=reached)],
        ("c", "not there"): [make_stored_run(target={"accuracy": 0.6, "reached": None}, operations=1e6)],
        ("c", "silent"): [
            make_stored_run(
                sent=0, target=reached | {"reached": {"bytes": {"up": 0, "down": 0}, "flops": {"clients": 1}}}
            )
        ],
    }
    (one,) = metrics.trade_off(shown)
    assert one.numbers is not None
    assert [row[1:4] + row[5:] for row in one.numbers.rows] == [
        ["there", "70.00", "400", "yes"], ["not there", "70.00", "1000", "no"], ["silent", "70.00", "0", "yes"]
    ]  # fmt: skip
    there, other, level = one.draw(style.WIDE).axes[0].lines
    assert list(there.get_xdata()) == [400]
    assert there.get_markersize() == pytest.approx(2 * other.get_markersize())
    assert other.get_markerfacecolor() == style.PAPER != there.get_markerfacecolor()
    assert level.get_linestyle() == ":"


def test_arrivals_are_in_simulated_time() -> None:
    """70 % come in round 2: after 8 s with waiting and 4 s without, twice as soon."""
    target = {"accuracy": 0.6, "reached": None}
    (one,) = metrics.arrivals(
        {("c", "m"): [make_stored_run(target=target)], ("c", "slow"): [make_stored_run(accuracies=(0.1, 0.2))]}
    )
    assert one.numbers is not None
    assert one.numbers.rows == [["c", "m", "2", "8", "4", "2.000"], ["c", "slow", "–", "–", "–", "–"]]
    free, waiting, *_ = one.draw(style.WIDE).axes[0].lines
    assert (list(free.get_xdata()), list(waiting.get_xdata())) == ([2, 4], [4, 8])


def test_curves_on_all_rows_take_whichever_model_there_is() -> None:
    run = make_stored_run()
    run.metrics[0]["personal"]["post"]["global"] = 0.25
    run.metrics[1]["personal"]["post"]["global"] = 0.5
    (one,) = metrics.curves({("c", "m"): [run]}, whose="global")
    (line,) = one.draw(style.WIDE).axes[0].lines
    assert line.get_ydata() == pytest.approx([25, 50])
    with pytest.raises(AtollError, match="whose"):
        metrics.curves({("c", "m"): [run]}, whose="mine")


def test_holdings_are_a_figure_for_each_case() -> None:
    made = metrics.holdings({("beta=0.5", "m"): [make_stored_run()], ("beta=0.1", "m"): [make_stored_run()]})
    assert [d.name for d in made] == ["holdings-beta-0.5", "holdings-beta-0.1"]


# -- simulated time ----------------------------------------------------------------------------------------------------


def test_schedule_of_rounds_matches_hand_computed_times() -> None:
    """Download 1, generic 2, personal 4, upload 3, aggregation 1.

    Waiting: trained at 3, done at 7, sent at 10, aggregated at 11; the next download from 11 to 12. Wait-free: sent at
    6, aggregated at 7, when the client is just done.
    """
    times = {"a": Times(2, 4, 3, 1)}
    wait, free = (simulate_schedule(times, 1.0, 2, overlap) for overlap in (False, True))
    assert wait.ends == [11, 22]
    assert free.ends == [7, 14]
    assert [(p.what, p.start, p.end) for p in wait.activities[:5]] == [
        ("download", 0, 1), ("generic training", 1, 3), ("personal training", 3, 7), ("upload", 7, 10),
        ("waiting", 10, 11),
    ]  # fmt: skip
    assert [(p.start, p.end) for p in free.activities if p.what == "upload"] == [(3, 6), (10, 13)]
    assert not any(p.what == "waiting" for p in free.activities)
    clock = Clock(overlap=True)
    assert [clock.round(times, 1.0).generic for _ in range(2)] == free.ends


# -- from models -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small runs with their models."""
    root = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        draw_no_report(patch)
        for name, changes in {
            "dw": {"method": "fedavg", "terms": ("dw:mu=0",)}, "local": {"method": "local"},
            "pfedes": {"method": "pfedes"}, "scd": {"method": "scd", "wait_free": True, "rounds": 3},
        }.items():  # fmt: skip
            run_setup(build_setup(Config(**TINY | changes, out=str(root / name))))
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def dw(ran: dict[str, Path]) -> SavedRun:
    return open_run(ran["dw"]).received()


def shown_of(*paths: Path) -> RunsByCase:
    return {("c", path.name): [load(path)] for path in paths}


def test_features_are_those_of_the_saved_model(dw: SavedRun) -> None:
    found = features(dw, ["1"], rows=5)
    model, (x, y) = dw.pool.models["1"], dw.pool.test[1]
    assert found.x == pytest.approx(model.features(dw.params("1"), x[:5]).numpy())
    assert found.labels.tolist() == y[:5].tolist()
    assert found.heads is not None  # one global model, so one head
    assert np.linalg.norm(features(dw, unit=True).heads, axis=1) == pytest.approx(np.ones(10))


def test_features_have_no_heads_if_clients_have_different_ones(ran: dict[str, Path]) -> None:
    assert features(open_run(ran["local"])).heads is None


def test_separation_matches_hand_computed_values() -> None:
    """Centres of class 0 (rows 0 and 2) and 1 (rows 10 and 3, which is nearer to 1 than to 6.5): three of four."""
    x = np.array([[0.0, 1.0], [2.0, 1.0], [10.0, 1.0], [3.0, 1.0]])
    heads = np.array([[0.9, 1.0], [1.0, 0.1]])  # centres (1, 1) and (6.5, 1): by angle, each to its own
    found = Features(x, np.array([0, 0, 1, 1]), heads)
    apart = separation(found)
    assert apart.near == pytest.approx(0.75)
    assert apart.heads == 1.0
    assert separation(found._replace(heads=heads[::-1])).heads == 0.0
    assert math.isnan(separation(found._replace(heads=None)).heads)


def test_embedding_is_deterministic() -> None:
    found = Features(ANY.random((20, 4)), np.arange(20) % 2, ANY.random((2, 4)))
    (xy, heads), (again, _) = embed(found), embed(found)
    assert (xy == again).all()
    assert heads is not None
    assert (xy.shape, heads.shape) == ((20, 2), (2, 2))
    with pytest.raises(AtollError, match="more samples"):
        embed(Features(np.ones((3, 2)), np.zeros(3, int), None))


def test_umap_needs_its_package_and_takes_neighbours_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Features(ANY.random((8, 3)), np.arange(8) % 2, None)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(AtollError, match="pip install umap-learn"):
        embed(found, way="umap")

    class UMAP:
        def __init__(self, n_neighbors: int, random_state: int, n_jobs: int):
            assert (n_neighbors, random_state) == (2, 7)

        def fit_transform(self, x: Any) -> Any:
            return x[:, :2]

    stand_in = ModuleType("umap")
    stand_in.UMAP = UMAP  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "umap", stand_in)
    assert embed(found, way="umap", seed=7)[0] == pytest.approx(found.x[:, :2], abs=1e-6)


def test_soft_labels_and_relations_come_from_the_servers_state(dw: SavedRun, ran: dict[str, Path]) -> None:
    found = relations(dw)
    omega = dw.server.params["head.weight"]
    assert found.weights == pytest.approx((omega @ omega.T).softmax(1).numpy(), abs=1e-6)
    assert found.soft.sum(1) == pytest.approx(np.ones(10), abs=1e-5)
    with pytest.raises(AtollError, match="dw:mu=0"):
        relations(open_run(ran["local"]))


def test_soft_labels_and_relations_are_compared_off_the_diagonal() -> None:
    """Off-diagonals 1, 2, 3, ... against twice as much: correlation 1; Frobenius distance sqrt(1 + 4 + ... + 36)."""
    a = np.array([[0.0, 1, 2], [3, 0, 4], [5, 6, 0]])
    assert Relations(a, 2 * a).correlation == pytest.approx(1)
    assert Relations(a, 2 * a).distance == pytest.approx(math.sqrt(91))
    assert math.isnan(Relations(a, np.eye(3)).correlation)


def test_weight_norms_and_class_shares_sum_to_1(ran: dict[str, Path]) -> None:
    models = open_run(ran["local"])
    first = weight_norms(models)[0]
    norms = models.params("0")["head.weight"].norm(dim=1).numpy()
    assert first.moduli == pytest.approx(norms / norms.sum(), abs=1e-6)
    assert first.shares == pytest.approx(np.array(load(ran["local"]).holdings["train"][0]) / models.pool.train.size(0))


def test_correlate_norms_averages_spearman_correlations() -> None:
    """Orders reversed: -1; equal: 1; no order at all in the third, which does not count."""
    rising = np.array([0.1, 0.3, 0.6])
    found = [WeightNorms(rising, rising[::-1]), WeightNorms(rising, rising), WeightNorms(np.full(3, 1 / 3), rising)]
    assert correlate_norms(found) == (2, pytest.approx(0), 1)


def test_proxy_images_are_outputs_of_the_proxy(ran: dict[str, Path]) -> None:
    run = open_run(ran["pfedes"])
    found = proxy_images(run, "0", rows=3)
    assert found.before.shape == found.after.shape == (3, 8, 8, 1)
    made = run.pool.proxy(run.server.params, run.pool.test[0].x[:3])[1, 0].detach().numpy()  # type: ignore[misc]
    assert found.after[1, :, :, 0] == pytest.approx((made - made.min()) / (made.max() - made.min()), abs=1e-5)
    with pytest.raises(AtollError, match="pfedes"):
        proxy_images(open_run(ran["local"]), "0")


def test_every_kind_that_opens_models_has_its_numbers(ran: dict[str, Path]) -> None:
    (tsne,) = models.tsne(shown_of(ran["dw"], ran["local"]), rows=10, heads=True)
    (matrices,) = models.relations(shown_of(ran["dw"]))
    (moduli,) = models.moduli(shown_of(ran["local"]))
    (images,) = models.images(shown_of(ran["pfedes"]))
    made = models.timeline(shown_of(ran["scd"]), clients=2, rounds=1)
    assert [d.name for d in (tsne, matrices, moduli, images, *made)] == [
        "tsne",
        "relations",
        "moduli",
        "images",
        "timeline",
    ]
    for one in (tsne, matrices, moduli):
        assert one.numbers is not None
        assert {len(row) for row in one.numbers.rows} == {len(one.numbers.columns)}
    assert [ax.get_title(loc="left") for ax in tsne.draw(style.WIDE).axes] == ["dw", "local"]
    assert not images.inline


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [("tsen", "tsne"), ({"kind": "tsne", "row": 3}, "rows"), ({"rows": 3}, "kind"), (["tsne"], "kind")],
)
def test_a_figure_that_is_misspelt_is_refused(said: Any, why: str) -> None:
    with pytest.raises(AtollError, match=why):
        figures.check_request(said, "a recipe")


def test_parse_request_reads_kind_and_settings() -> None:
    assert figures.parse_request("tsne:rows=50&unit=true") == ("tsne", {"rows": 50, "unit": True})
    assert figures.parse_request("boxes") == ("boxes", {})


def test_page_shows_requested_figures_first(
    tmp_path: Path, ran: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = pictures.Picture(pictures.Markup("<svg></svg>"), pictures.Markup("<svg></svg>"))
    monkeypatch.setattr(pictures, "draw_picture", lambda draw, name: picture)
    own = [FigureSpec("a", "What it was for.", lambda width: Figure(), metrics.Sheet("n", ["x"], [["17.5"]]))]
    page = html.write(
        [ran["local"]], tmp_path / "r.html", [*own, own[0]._replace(caption="A photograph.", inline=False)]
    ).read_text()
    assert (
        page.index('id="figures"') < page.index("What it was for.") < page.index("17.5") < page.index('id="comparison"')
    )
    assert "A photograph." not in page


def test_figures_of_runs_from_the_command_line(
    tmp_path: Path, ran: dict[str, Path], atoll: Any, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "write_runs", lambda runs, out, own=(): out)
    monkeypatch.setattr(figures, "DEFAULT_KINDS", ("boxes",))  # drawing takes long
    atoll("report", ran["dw"], "--figures", tmp_path / "f", "--figure", "relations", "--out", tmp_path / "r.html")
    assert "tsne" in refused("report", ran["dw"], "--figure", "tsen")
    names = {path.name for path in (tmp_path / "f").iterdir()}
    assert names == {f"{stem}{ending}" for stem in ("relations", "boxes") for ending in (".png", ".svg")}
    assert (tmp_path / "f" / "relations.png").read_bytes().startswith(b"\x89PNG")


def test_a_comparison_leaves_figures(tmp_path: Path, atoll: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "write_runs", lambda runs, out, own=(): out)
    monkeypatch.setattr(figures, "DEFAULT_KINDS", ("curves", "holdings"))
    monkeypatch.setattr(figures, "ENDINGS", (".svg",))
    words = ("--rows", 300, "--clients", 3, "--rounds", 1, "--epochs", 1, "--models", "mlp:hidden=8", "--quiet")
    atoll("compare", "local", "fedavg", *words, "--out", tmp_path / "c")
    assert {path.name for path in (tmp_path / "c" / "figures").iterdir()} == {"curves.svg", "holdings.svg"}


def test_lengths_of_rounds_beside_the_timeline_give_the_speed_up_of_tables(ran: dict[str, Path]) -> None:
    (made,) = models.timeline(shown_of(ran["scd"]), clients=4, rounds=3)

    assert made.numbers is not None
    waiting, wait_free = (float(row[-1]) for row in made.numbers.rows)
    clock = load(ran["scd"]).summary["clock"]
    assert waiting / wait_free == pytest.approx(clock["speedup"], rel=0.01)


def test_shades_reach_from_the_smallest_to_the_largest_value_and_axes_have_names() -> None:
    values = np.array([[0.15, 0.04], [0.06, 0.12]])

    fig = plots.matrices([[plots.Matrix("soft labels", values)]], ["cat", "dog"])

    first, bar = fig.axes
    (mesh,) = first.collections
    assert (mesh.norm.vmin, mesh.norm.vmax) == (0.04, 0.15)
    assert (first.get_xlabel(), first.get_ylabel(), bar.get_ylabel()) == ("class", "true class", "probability")


def test_both_colours_of_norms_stand_in_the_legend() -> None:
    draw = plots.Draw("", np.array([0.7, 0.3]), np.array([0.6, 0.4]))

    fig = plots.moduli([draw], ["cat", "dog"])

    texts = [text.get_text() for text in fig.legends[0].get_texts()]
    assert texts == ["share and norm on opposite sides of the average", "both above or both below the average"]
    assert "sum of norms" in fig.axes[1].get_ylabel()


def test_norms_are_percentages_in_both_panels_of_a_model() -> None:
    draw = plots.Draw("", np.array([0.7, 0.3]), np.array([0.614, 0.386]))

    circles, scatter = plots.moduli([draw], ["cat", "dog"]).axes

    assert [text.get_text() for text in circles.texts] == ["61.4", "38.6"]
    assert scatter.get_ylabel().endswith("%")
    assert circles.get_xlabel().endswith("%")


def test_words_above_a_figure_stand_in_its_caption_and_above_its_numbers(ran: dict[str, Path]) -> None:
    (moduli,) = models.moduli(shown_of(ran["local"]))

    titled = head(moduli, "Run on digits")

    assert titled.draw(style.WIDE).get_suptitle() == "Run on digits"
    assert titled.caption.endswith(" Run on digits.")
    assert titled.numbers is not None
    assert titled.numbers.title == "Shares and norms (run on digits)"
