"""The command line, as a user meets it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from atoll._version import __version__
from atoll.methods import _registry
from atoll.report import figures, html

Atoll = Callable[..., Any]
Refused = Callable[..., str]
QUICK = ("--rows", 300, "--clients", 3, "--rounds", 2, "--epochs", 1)
COLUMNS = {
    "round": "int64", "client": "string", "model": "string", "n_train": "int64", "n_test": "int64",
    "accuracy": "double", "val": "double", "pre_accuracy": "double", "generic_accuracy": "double",
    "loss": "double", "precision": "double", "recall": "double", "f1": "double", "auc": "double",
    "macro_precision": "double", "macro_recall": "double", "macro_f1": "double", "macro_auc": "double",
}  # fmt: skip


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Reports that would have been written; of figures there is one."""
    paths: list[Path] = []

    def write(runs: Any, path: Path) -> Path:
        paths.append(path)
        return path

    monkeypatch.setattr(html, "write_runs", write)
    monkeypatch.setattr(figures, "DEFAULT_KINDS", ("curves",))
    monkeypatch.setattr(figures, "ENDINGS", (".svg",))
    return paths


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_writes_all_files_to_its_directory(atoll: Atoll) -> None:
    result = atoll("run", "fedavg", *QUICK, "--out", "run")
    assert {p.name for p in Path("run").iterdir()} >= {
        "config.yaml", "summary.json", "metrics.jsonl", "clients.parquet", "holdings.json", "checkpoints", "objects",
        "report.html",
    }  # fmt: skip
    assert "fedavg" in result.stdout
    assert "Report: run/report.html" in result.stdout
    assert "<html" in Path("run/report.html").read_text()
    again = atoll("report", "run")
    assert "fedavg" in again.stdout
    assert "run/report.html" in again.stdout


def test_summary_has_all_entries(atoll: Atoll, drawn: list[Path]) -> None:
    result = atoll("run", "dcpfl:no-al", *QUICK, "--out", "run", "--json")
    summary = json.loads(result.stdout)
    assert summary == json.loads(Path("run/summary.json").read_text())
    plain = {"method": "dcpfl", "variant": "no-al", "data": "digits", "clients": 3, "rounds": 2, "seed": 0}
    assert {name: summary[name] for name in plain} == plain
    assert {"final", "best", "best_by_val", "worst_decile"} <= set(summary["personal"])
    assert all(0 <= summary["personal"][name] <= 1 for name in ("final", "best", "best_by_val", "worst_decile"))
    assert summary["generic"]["source"] == "average"
    assert summary["bytes"]["up"] > 0
    assert summary["bytes"]["down"] > 0
    assert summary["flops"]["clients"] > 0
    assert summary["seconds"] > 0
    assert len(summary["digest"]) == 64
    assert summary["status"] == "finished"
    assert summary["version"] == __version__
    assert drawn == [Path("run/report.html")]  # once


def test_two_settings_of_one_method_are_compared_repeated_and_resumed(atoll: Atoll, drawn: list[Path]) -> None:
    shown = atoll("compare", "fedprox:mu=0.1", "fedprox:mu=5", *QUICK, "--out", "root").stdout
    assert "fedprox:mu=0.1" in shown
    assert "fedprox:mu=5" in shown
    kept = [json.loads(Path(f"root/fedprox-mu-{mu}-seed0/summary.json").read_text()) for mu in ("0.1", "5")]
    assert [one["variant"] for one in kept] == ["mu=0.1", "mu=5"]

    plain = atoll("run", "fedprox", *QUICK, "--set", "mu=5", "--out", "plain", "--json").stdout
    again = atoll("run", "--config", "root/fedprox-mu-5-seed0/config.yaml", "--out", "again", "--json").stdout
    longer = atoll("run", "--resume", "root/fedprox-mu-5-seed0", "--rounds", 3, "--json").stdout

    digests = [json.loads(text)["digest"] for text in (plain, again)]
    assert digests == [kept[1]["digest"]] * 2 != [kept[0]["digest"]] * 2
    assert (json.loads(longer)["label"], json.loads(longer)["rounds"]) == ("fedprox:mu=5", 3)


def test_a_generic_model_is_in_the_summary(atoll: Atoll, drawn: list[Path]) -> None:
    summary = json.loads(atoll("run", "fedavg", *QUICK, "--out", "run", "--json").stdout)
    assert summary["variant"] is None
    assert {"final", "best", "best_by_val"} <= set(summary["generic"])


def test_metrics_have_a_line_for_each_evaluated_round(atoll: Atoll, drawn: list[Path]) -> None:
    atoll("run", "fedavg", *QUICK, "--rounds", 5, "--eval-every", 2, "--out", "run", "--quiet")
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4, 5]
    assert set(lines[0]) == {
        "round", "personal", "generic", "training", "bytes", "flops", "clock", "participants", "rejected", "seconds"
    }  # fmt: skip
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_clients_table_has_a_row_for_each_client_and_round(atoll: Atoll, drawn: list[Path]) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "run", "--quiet")
    table = pq.read_table("run/clients.parquet")
    assert {f.name: str(f.type) for f in table.schema} == COLUMNS
    assert table.num_rows == 3 * 2
    assert sorted({(row["round"], row["client"]) for row in table.to_pylist()}) == [
        (t, i) for t in (1, 2) for i in sorted(set(table["client"].to_pylist()))
    ]


def test_holdings_count_rows_by_client_and_class(atoll: Atoll, drawn: list[Path]) -> None:
    atoll("run", "fedavg", *QUICK, "--out", "run", "--quiet")
    holdings = json.loads(Path("run/holdings.json").read_text())
    assert len(holdings["clients"]) == 3
    assert len(holdings["classes"]) == 10
    rows = sum(sum(map(sum, holdings[part])) for part in ("train", "val"))
    assert rows == 300
    table = pq.read_table("run/clients.parquet").to_pylist()
    assert [sum(counts) for counts in holdings["train"]] == [row["n_train"] for row in table[:3]]


def test_the_configuration_of_a_finished_run_gives_the_same_run(atoll: Atoll, drawn: list[Path]) -> None:
    options = ("--models", "mlp:hidden=8,mlp:hidden=16", "--width", 8, "--set", "lam=0.3", "--rate", 0.7, "--seed", 3)
    first = json.loads(atoll("run", "fedproto", *QUICK, *options, "--out", "a", "--json").stdout)
    second = json.loads(atoll("run", "--config", "a/config.yaml", "--out", "b", "--json").stdout)
    assert second["digest"] == first["digest"]
    assert second["personal"] == first["personal"]
    a, b = (yaml.safe_load(Path(name, "config.yaml").read_text()) for name in "ab")
    assert {**a, "out": None} == {**b, "out": None}


def test_run_without_out_creates_a_new_directory(atoll: Atoll, drawn: list[Path]) -> None:
    for _ in range(3):
        atoll("run", "fedavg+dw:mu=0.1", *QUICK, "--rounds", 1, "--quiet")
    names = [f"fedavg+dw-mu-0.1-digits{end}" for end in ("", "-2", "-3")]
    assert sorted(p.name for p in Path("runs").iterdir()) == names


def test_several_seeds_are_several_runs(atoll: Atoll, drawn: list[Path]) -> None:
    result = atoll("run", "fedavg", *QUICK, "--seeds", "0,4", "--out", "root", "--json")
    assert [summary["seed"] for summary in json.loads(result.stdout)] == [0, 4]
    assert sorted(p.name for p in Path("root").iterdir()) == ["fedavg-seed0", "fedavg-seed4", "figures", "plan.yaml"]
    assert drawn[-1] == Path("root/report.html")


@pytest.mark.parametrize("command", [("run", "fedavg"), ("compare", "fedavg", "local")])
def test_quiet_run_prints_nothing(command: tuple[str, ...], atoll: Atoll, drawn: list[Path]) -> None:
    result = atoll(*command, *QUICK, "--out", "run", "--quiet")
    assert result.stdout == ""
    assert result.stderr == ""


def test_progress_goes_to_standard_error(atoll: Atoll, drawn: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: True))  # elsewhere there is none
    result = atoll("run", "fedavg", *QUICK, "--out", "run")
    assert "2/2" in result.stderr
    assert "2/2" not in result.stdout


def test_degenerate_setting_gives_a_note(atoll: Atoll, drawn: list[Path]) -> None:
    result = atoll("run", "ditto", *QUICK, "--set", "lam=0", "--out", "run", "--json")
    assert "Warning: With lam = 0" in result.stderr
    json.loads(result.stdout)


def test_settings_and_regularisers_change_the_run(atoll: Atoll, drawn: list[Path]) -> None:
    def digest(*words: object) -> str:
        return str(
            json.loads(atoll("run", "fedavg", *QUICK, *words, "--out", "run", "--force", "--json").stdout)["digest"]
        )

    plain = digest()
    assert digest() == plain
    others = [
        digest("--set", "optim.momentum=0"), digest("--optimiser", "adam"), digest("--lr", 0.5),
        digest("--with", "proximal"), digest("--epochs", 2), digest("--batch-size", 7), digest("--rate", 0.5),
        digest("--seed", 1),
        digest("--partition", "iid"), digest("--init", "per_client"), digest("--transform", "none"),
    ]  # fmt: skip
    assert len({plain, *others}) == 12


# -- compare ----------------------------------------------------------------------------------------------------------


def test_a_comparison_ranks_methods_over_seeds(atoll: Atoll, drawn: list[Path]) -> None:
    result = atoll("compare", "local", "fedavg+dw:mu=0.1", *QUICK, "--seeds", "0,1", "--out", "root")
    assert "local" in result.stdout
    assert "Report: root/report.html" in result.stdout
    assert sorted(p.name for p in Path("root").iterdir()) == [
        "fedavg+dw-mu-0.1-seed0", "fedavg+dw-mu-0.1-seed1", "figures", "local-seed0", "local-seed1", "plan.yaml"
    ]  # fmt: skip
    again = atoll(
        "compare", "local", "fedavg+dw:mu=0.1", *QUICK, "--seeds", "0,1", "--out", "root", "--resume", "--json"
    )
    summaries = json.loads(again.stdout)
    assert [(s["method"], s["seed"]) for s in summaries] == [("local", 0), ("local", 1), ("fedavg", 0), ("fedavg", 1)]
    reported = json.loads(atoll("report", "root", "--json").stdout)
    assert sorted(s["digest"] for s in reported) == sorted(s["digest"] for s in summaries)


def test_methods_of_a_comparison_see_the_same_clients(atoll: Atoll, drawn: list[Path]) -> None:
    atoll("compare", "local", "fedavg", *QUICK, "--out", "root", "--quiet")
    a, b = (Path("root", f"{name}-seed0", "holdings.json").read_text() for name in ("local", "fedavg"))
    assert a == b


# -- listings ---------------------------------------------------------------------------------------------------------


def test_methods_are_listed(atoll: Atoll) -> None:
    listed = json.loads(atoll("methods", "--json").stdout)
    assert [m["name"] for m in listed] == list(_registry.methods())
    assert {"citation", "url", "year", "family", "needs", "heterogeneous", "variants", "regularisers"} <= set(listed[0])
    text = atoll("methods").stdout
    assert all(name in text for name in _registry.methods())
    assert "dw" in text
    assert "proximal" in text


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_a_method_is_described(name: str, atoll: Atoll) -> None:
    described = json.loads(atoll("methods", name, "--json").stdout)
    assert described["name"] == name
    assert "client:" in described["algorithm"]
    text = atoll("methods", name).stdout
    assert "client:" in text
    for s in described["settings"]:
        assert s["name"] in text


def test_a_variant_is_described_with_its_method(atoll: Atoll) -> None:
    assert "Variant dcpfl:no-al: lam=0.0" in atoll("methods", "dcpfl:no-al").stdout


def test_audit_lists_the_fields_that_are_sent(atoll: Atoll) -> None:
    items = json.loads(atoll("audit", "fedavg", "--models", "linear", "--json").stdout)
    assert {(item["direction"], item["field"]) for item in items} >= {("up", "params"), ("up", "n"), ("down", "params")}
    text = atoll("audit", "fedavg", "--models", "linear").stdout
    assert "2,600 bytes reach a client with linear in this round, 2,604 leave it." in text
    assert "n_k, the number of training samples" in text


def test_tables_print_brackets_literally(atoll: Atoll) -> None:
    """Shapes and meanings hold brackets, which rich would take for colours."""
    items = json.loads(atoll("audit", "dcpfl", "--json").stdout)
    text = " ".join(atoll("audit", "dcpfl").stdout.split())
    for item in items:
        assert item["shape"] in text


def test_models_are_listed(atoll: Atoll) -> None:
    listed = json.loads(atoll("models", "--json").stdout)
    assert {"mlp", "cnn1", "lenet"} <= {m["name"] for m in listed}
    text = atoll("models").stdout
    assert all(m["name"] in text for m in listed)


def test_data_sets_are_listed(atoll: Atoll) -> None:
    assert "digits" in {entry["name"] for entry in json.loads(atoll("data", "list", "--json").stdout)}


@pytest.mark.parametrize(
    "words", [(), ("run",), ("compare",), ("methods",), ("audit",), ("models",), ("data",), ("report",)]
)
def test_every_command_has_help(words: tuple[str, ...], atoll: Atoll) -> None:
    for flag in ("--help", "-h"):
        assert "Usage:" in atoll(*words, flag).stdout


def test_version_option_prints_the_version(atoll: Atoll) -> None:
    assert __version__ in atoll("--version").stdout


# -- misspelt words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu", "fedavg"], "No such command 'rnu'. Did you mean 'run'?"),
        (["compar", "fedavg"], "Did you mean 'compare'?"),
        (["run", "fedavg", "--ruonds", "3"], "--rounds"),
        (["run", "fedavgg"], "Unknown method 'fedavgg'. Did you mean 'fedavg'?"),
        (["compare", "fedavg", "dito"], "Did you mean 'ditto'?"),
        (["methods", "dcpl"], "Did you mean 'dcpfl'?"),
        (["audit", "dcpl"], "Did you mean 'dcpfl'?"),
        (["run", "fedavg", "--models", "mpl"], "Did you mean 'mlp'?"),
        (["run", "fedavg", "--models", "mlp:hiden=3"], "hidden"),
        (["run", "fedavg", "--data", "digit"], "Did you mean 'digits'?"),
        (["run", "fedavg", "--partition", "dirichlt:0.5"], "dirichlet"),
        (["run", "fedavg", "--split", "client_8111"], "Did you mean 'client_811'?"),
        (["run", "fedavg", "--transform", "plian"], "Did you mean 'plain'?"),
        (["run", "fedavg", "--with", "proximl"], "Did you mean 'proximal'?"),
        (["run", "ditto", "--set", "lamm=1"], "Did you mean 'lam'?"),
        (["run", "ditto", "--set", "optim.momentm=1"], "Did you mean 'momentum'?"),
        (["run", "ditto", "--set", "optim=adm"], "Did you mean 'adam'?"),
        (["run", "dcpfl:no-aal"], "Did you mean 'no-al'?"),
        (["methods", "dcpfl:no-aal"], "Did you mean 'no-al'?"),
        (["audit", "dcpfl:lamm=1"], "Did you mean 'lam'?"),
        (["check", "dcpfl:lamm=1"], "Did you mean 'lam'?"),
        (["sweep", "dcpfl:lam=1", "--grid", "lam=1,2"], "says what lam is"),
        (["run", "fedavg", "--backend", "vmp"], "vmap"),
        (["run", "fedavg", "--optimiser", "adma"], "adam"),
    ],
)  # fmt: skip
def test_a_misspelt_word_suggests_the_nearest(words: list[str], hint: str, refused: Refused) -> None:
    assert hint in refused(*words)
    assert not Path("runs").exists()


def test_run_without_a_method_asks_for_one(refused: Refused) -> None:
    assert "No method is given" in refused("run")
    assert "No methods are given" in refused("compare")


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom atoll.cli import COMMANDS, main\n"
        "shown = CliRunner().invoke(main, ['--help']).output\nassert all(name in shown for name in COMMANDS)\n"
        "print(sorted({'torch', 'numpy', 'sklearn', 'matplotlib', 'pyarrow'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("without_report")
def test_rate_of_no_client_and_test_rows_of_one_class_are_told(atoll: Callable[..., Any]) -> None:
    words = ["--clients", "10", "--rounds", "1", "--partition", "pathological:1", "--rate", "0.01", "--seeds", "0,1"]

    stderr = atoll("run", "local", *words).stderr

    assert stderr.count("Note: --rate 0.01 of 10 clients rounds to none, so one client takes part in each round.") == 1
    assert "Warning: 20 of 20 clients over 2 splits of the samples have test samples of one class only" in stderr
