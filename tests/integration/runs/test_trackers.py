"""What TensorBoard and MLflow hold of runs, read by their own readers."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from atoll import run, run_compare
from atoll.engine.loggers import PROJECT, flatten_clients, flatten_metrics

pytestmark = pytest.mark.usefixtures("without_report")
SHORT: dict[str, Any] = {"data": "digits", "rows": 200, "clients": 2, "rounds": 2, "models": "linear"}
Series = dict[str, list[tuple[int, float]]]


def written(folder: Path) -> Series:
    """Return what metrics.jsonl and clients.parquet hold, as round and value by name."""
    clients, found = pq.read_table(folder / "clients.parquet"), defaultdict[str, list[tuple[int, float]]](list)
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        own = clients.filter(pc.equal(clients["round"], line["round"]))
        for name, number in (flatten_metrics(line) | flatten_clients(own)).items():
            found[name].append((line["round"], number))
    return dict(found)


def interrupt(folder: Path, after: int) -> Any:
    """Return a watch that ends the run after a round."""

    def watch(done: int, line: Any) -> None:
        if done == after and line is not None:
            raise KeyboardInterrupt

    return watch


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def in_tensorboard(folder: Path) -> Series:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    events = accumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def single_precision(series: Series) -> dict[str, Any]:
    """Return series as they are after storage in 32 bits."""
    return {name: [(step, pytest.approx(value, rel=1e-6)) for step, value in own] for name, own in series.items()}


def test_tensorboard_holds_every_metric_and_no_round_twice_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "one"
    options = {**SHORT, "rounds": 6, "checkpoint_every": 3, "track": ["tensorboard"], "out": folder}
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", **options, watch=interrupt(folder, 5))

    run("fedavg", **options, resume=True)

    held = in_tensorboard(folder)
    assert held == single_precision(written(folder))
    assert [step for step, _ in held["client/0/accuracy"]] == [1, 2, 3, 4, 5, 6]


def test_replaced_run_leaves_nothing_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = tmp_path / "one"
    run("fedavg", **SHORT, track=["tensorboard"], out=folder)

    run("fedavg", **SHORT | {"rounds": 1}, track=["tensorboard"], out=folder, force=True)

    assert in_tensorboard(folder) == single_precision(written(folder))


# -- MLflow -----------------------------------------------------------------------------------------------------------


def in_mlflow(client: Any, found: Any) -> Series:
    names = found.data.metrics
    return {name: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)] for name in names}


def test_one_store_of_mlflow_holds_all_runs_with_every_metric_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted run goes on in its own run of MLflow, and its repeated rounds are not logged again."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    options = {**SHORT, "rounds": 6, "checkpoint_every": 3, "track": ["mlflow"], "out": "one"}
    client = mlflow.tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")

    run_compare(["local", "fedavg"], **SHORT, track=["mlflow"], out="both", seeds=[0, 1])
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", **options, watch=interrupt(Path("one"), 5))
    store = client.get_experiment_by_name(PROJECT).experiment_id
    stopped = {found.info.run_name: found.info.status for found in client.search_runs([store])}
    run("fedavg", **options, resume=True)

    held = {found.info.run_name: found for found in client.search_runs([store])}
    assert stopped["one"] == "KILLED"
    assert {found.info.status for found in held.values()} == {"FINISHED"}
    assert sorted(held) == ["fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1", "one"]
    assert held["fedavg-seed1"].data.params.items() >= {"method": "fedavg", "seed": "1", "lr": "0.01"}.items()
    for name, found in held.items():
        series, wanted = in_mlflow(client, found), written(Path("one" if name == "one" else f"both/{name}"))
        for each in (series, wanted) if name == "one" else ():
            del each["seconds"]  # of the processor, so that repeated rounds differ
        assert series == wanted


def test_names_of_clients_that_mlflow_refuses_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    rows = [[float(n % 7), float(n % 5)] for n in range(40)]
    data = {name: (rows, [n % 2 for n in range(40)]) for name in ("north (old)", "..")}

    result = run("local", data, rounds=1, models="linear", track=["mlflow"], out="one")

    client = mlflow.tracking.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name(PROJECT).experiment_id])
    assert not [note for note in result.notes if "mlflow" in note]
    assert {"client/north _old_/accuracy", "client/__/accuracy"} <= set(found.data.metrics)
