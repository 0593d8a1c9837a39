"""Benchmarks run, for a few steps each, and say what they are meant to say."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

from benchmarks import __main__ as harness
from benchmarks import many_clients, method_cost, overhead, page, peers_page, plot, scale, sites, timing
from benchmarks.targets import Target, target

OWN = {
    "vmap": {"vmap_speedup.W3", "vmap_speedup.W3_E5", "vmap_speedup.W3_training"},
    "growth": {"growth.sampled_clients", "growth.model_size", "growth.dcpfl_server_classes"},
    "startup": {
        f"startup.{what}_seconds"
        for what in ("help", "typo", "completion", "first_round_digits", "first_round_beyond_torch")
    },
    "many_clients": {
        "growth.registered_clients_40",
        "growth.eval_window",
        "files.ms_per_round_40",
        "files.ms_per_round_40_every_5",
        "evaluation.ms_per_1000_clients",
    },
    "method_cost": {"cost.dcpfl_8x4", "peak_mb.dcpfl_8x4"},
    "overhead": {f"overhead.{name}" for name in overhead.QUICK},
    "scale": {
        f"{what}.clients_{n}" for what in ("rss_mb", "seconds_per_round", "seconds_first_round") for n in (20, 40)
    }
    | {"idle_kb_per_client", "scale.same_digest"},
    "spectrum": {
        f"spectrum.{name}"
        for name in (
            "over_transforms_1e6",
            "over_torch_1e6",
            "low_vector",
            "all_vector",
            "all_layer",
            "reg_every_2",
            "reg_every_4",
            "reg_every_2_moves",
            "reg_every_4_moves",
        )
    },
    "peak": {"peak.gemm_gflops_per_thread"}
    | {f"peak_share.{work}" for work in ("W1s_B10", "W1s_B64", "W1_B10", "W1_B64", "W2_B64", "W3")},
}


@pytest.mark.parametrize("name", sorted(harness.benchmarks()))
def test_every_benchmark_gives_its_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # of the processes that some of them start
    figures = harness.measured(name, quick=True)
    assert figures.keys() == OWN.get(name, figures.keys())
    assert all(isinstance(value, float) and value == value for value in figures.values())
    assert all(value > 0 for key, value in figures.items() if not key.startswith(("idle_kb", "low_rank.accuracy")))


def test_harness_finds_all_benchmarks() -> None:
    assert OWN.keys() <= harness.benchmarks().keys()


# -- the harness -------------------------------------------------------------------------------------------------------


class Fake:
    """A benchmark that takes no time."""

    def __init__(self, **figures: float):
        self.given = figures

    def figures(self, quick: bool) -> dict[str, float]:
        return {name: value / 2 if quick else value for name, value in self.given.items()}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"a": Fake(**{"overhead.local": 1.5}), "b": Fake(other=4.0)}
    monkeypatch.setattr(harness, "benchmarks", lambda: known)


@pytest.mark.usefixtures("fakes")
def test_harness_prints_a_table_and_writes_a_flat_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harness.main(["--out", str(tmp_path / "build" / "bench.json")])
    assert json.loads((tmp_path / "build" / "bench.json").read_text()) == {"overhead.local": 1.5, "other": 4.0}
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "overhead.local" in line]
    assert [word for word in line.split() if word not in "│┃"] == ["overhead.local", "1.5", "≤", "1.3", "missed"]


@pytest.mark.usefixtures("fakes")
def test_single_benchmark_keeps_figures_of_the_others(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    out.write_text('{"other": 1.0, "overhead.local": 9.0}')
    harness.main(["--only", "a", "--out", str(out)])
    assert json.loads(out.read_text()) == {"other": 1.0, "overhead.local": 1.5}


def test_quick_figures_do_not_replace_real_ones() -> None:
    assert harness._options(["--quick"]).out != harness._options([]).out == harness.BUILD


def test_median_leaves_out_the_warm_up_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of 9, 1, 2 and 6 seconds: the first does not count, and the median of the others is 2."""
    took = iter([9.0, 1.0, 2.0, 6.0])
    monkeypatch.setattr(timing, "seconds", lambda work: next(took))
    assert timing.interleaved({"a": lambda: None}, 3) == {"a": 2.0}


def test_target_lookup_and_comparison() -> None:
    assert target("vmap_speedup.W3") == Target(">=", 20)
    assert target("vmap_speedup.W3_E5") is None
    assert target("vs_plain.W1s_B64_E5") == Target("<=", 0.9)
    assert target("vs_plain.W1s_B10_E1") is None
    assert [Target("<=", 2).met(v) for v in (1, 2, 3)] == [True, True, False]
    assert [Target(">=", 2).met(v) for v in (1, 2, 3)] == [False, True, True]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_performance_page_shows_latest_figures() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text
    assert all(f"`{name}`" in text for name in page.all_figures())


def test_performance_page_explains_every_overhead_above_target() -> None:
    figures = page.all_figures()
    above = [name.removeprefix("overhead.") for name, v in figures.items() if name.startswith("overhead.") and v > 1.3]
    reasons = page.PLACE.sub("", page.PAGE.read_text(encoding="utf-8"))
    assert [name for name in above if f"`{name}`" not in reasons] == []


def test_performance_page_is_written_from_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MEASURED", tmp_path / "bench.json")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.PAGE.write_text("Before.\n<!-- figures -->\nold\n<!-- end of figures -->\nAfter.\n")
    page.write({"overhead.local": 1.5, "rss_mb.clients_100": 1234.5})
    text = page.PAGE.read_text()
    assert text.startswith("Before.\n<!-- figures -->\nMeasured on 20")
    assert text.endswith("<!-- end of figures -->\nAfter.\n")
    assert "| `overhead.local` | 1.5 | **missed**: ≤ 1.3 |\n| `rss_mb.clients_100` | 1,234 | ≤ 1500 |\n" in text
    assert "old" not in text


def test_figures_that_were_not_measured_again_keep_their_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEASURED", "PAGE", "PICTURE"):
        monkeypatch.setattr(page, name, tmp_path / name.lower())
    page.PAGE.write_text("<!-- figures -->\n<!-- end of figures -->\n")
    conditions = page.conditions()
    for date, figures in (("2026-01-01", {"a": 1.0, "b": 2.0}), ("2026-02-02", {"b": 3.0})):
        monkeypatch.setattr(page, "conditions", lambda now=conditions | {"date": date}: now)
        page.write(figures)

    assert [(part["date"], part["figures"]) for part in page.measured()] == [
        ("2026-02-02", {"b": 3.0}),
        ("2026-01-01", {"a": 1.0}),
    ]
    assert page.all_figures() == {"a": 1.0, "b": 3.0}
    assert page.PAGE.read_text().count("Measured on") == 2


# -- scale -------------------------------------------------------------------------------------------------------------


def test_scale_trial_in_a_new_process_gives_same_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process gives the digest that this one gives."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    there, here = scale.apart(scale.QUICK), scale.measure(scale.QUICK)
    assert here.weights == 172  # 16 * 8 + 8 + 8 * 4 + 4
    assert (there.weights, there.digest) == (here.weights, here.digest)


def test_plot_shows_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    """Two sizes of clients beside the one that is 1 by definition, and one of SCD; no panel of DC-PFL."""
    figures = {"growth.registered_clients_1000": 1.1, "growth.registered_clients_10000": 1.2, "cost.scd_1e6": 9.0}

    drawn = {panel.across: lines for panel, lines in plot.measured(figures)}
    plot.draw(figures, tmp_path / "cost.svg")
    plot.draw({}, tmp_path / "nothing.svg")

    assert drawn == {
        "registered clients": {"FedAvg": [(100, 1.0), (1_000, 1.1), (10_000, 1.2)]},
        "weights": {"SCD": [(1e6, 9.0)]},
    }
    picture = (tmp_path / "cost.svg").read_text()
    assert "<svg" in picture
    assert "10,000" in picture
    assert "mathdefault" not in picture  # ticks in a notation that pictures do not set
    assert not (tmp_path / "nothing.svg").exists()


def test_plot_draws_figures_that_benchmarks_give() -> None:
    """The names in the panels are those of full benchmarks."""
    named = {figure for panel in plot.PANELS for line in panel.lines.values() for _, figure in line}

    costs = {f"cost.{name}" for name in method_cost.SIZES}
    clients = {f"growth.registered_clients_{n}" for n in many_clients.CLIENTS[1:]}
    assert named <= costs | clients


def test_table_of_peers_by_hand() -> None:
    measured = {"version": "1.2", "cpu": 0.25, "ratio": [2.0, 1.5, 2.5], "accuracy": 0.9}
    found = {"W1": {"peer": measured, "loop": {**measured, "ratio": None}}, "W2": {"peer": {"failed": "no room"}}}

    assert peers_page.table(found).splitlines() == [
        "| contender | version | W1 | W2 | accuracy |",
        "| --- | --- | --- | --- | --- |",
        "| peer | 1.2 | 0.25 s, 2.00 (1.50 to 2.50) | failed | 0.900, – |",
        "| loop | 1.2 | 0.25 s | – | 0.900, – |",
    ]


def test_performance_page_shows_all_peers_that_were_measured() -> None:
    found = json.loads(peers_page.MEASURED.read_text(encoding="utf-8"))
    shown = peers_page.PLACE.search(page.PAGE.read_text(encoding="utf-8"))

    assert shown is not None
    assert {"fedlab", "pfl", "fluke", "fedjax", "flower"} <= {name for rows in found.values() for name in rows}
    assert all(f"| {name} |" in shown[0] for rows in found.values() for name in rows)


def test_measurements_between_sites_replace_their_cell_alone(tmp_path: Path) -> None:
    out = tmp_path / "sites.json"
    small, large = {"sites": 3, "payload_mb": 0.01}, {"sites": 3, "payload_mb": 100.0}

    for entry in (large, small, large | {"seconds": [1.0]}):
        sites._store(out, "rounds", entry, sites._pair)

    assert sites._kept(out)["rounds"] == [small, large | {"seconds": [1.0]}]


def test_measurements_between_sites_of_another_day_are_kept_and_of_other_versions_are_not(tmp_path: Path) -> None:
    out = tmp_path / "sites.json"
    entries = {"idle": [{"sites": 3, "date": "2026-01-01"}], "rounds": []}

    out.write_text(json.dumps(page.conditions() | {"date": "another one"} | entries))
    kept = sites._kept(out)
    out.write_text(json.dumps(page.conditions() | {"torch": "another one"} | entries))
    other = sites._kept(out)

    assert kept["idle"] == entries["idle"]
    assert other["idle"] == []


def test_missing_measurements_between_sites_are_taken_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, asked = tmp_path / "sites.json", []
    for entry in ({"sites": 3, "seconds": [1.0]}, {"sites": 10, "left_out": "it took longer than --minutes"}):
        sites._store(out, "rounds", entry | {"payload_mb": 1.0}, sites._pair)

    def attempt(number: int, payload: float, rounds: int, end: float) -> dict[str, Any]:
        asked.append((number, payload))
        return {"sites": number, "payload_mb": payload, "seconds": [1.0]}

    monkeypatch.setattr(sites, "attempt", attempt)
    sites.main(["--missing", "--idle", "0", "--sites", "3,10,30", "--payloads", "1", "--out", str(out)])

    assert asked == [(10, 1.0), (30, 1.0)]
    assert [entry["seconds"] for entry in sites._kept(out)["rounds"]] == [[1.0]] * 3
