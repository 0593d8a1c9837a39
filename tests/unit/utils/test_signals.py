"""Signals to stop: they take effect at any moment except within uninterrupted blocks."""

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.vmap
from support import small_runs

from atoll.backends.loop import LoopBackend
from atoll.engine.build import build_experiment, run_experiment
from atoll.engine.metrics_writer import MetricsWriter
from atoll.engine.setup import Setup
from atoll.storage.run_dir import RunDir
from atoll.utils.signals import Stopped, deferred, stop_if_requested, stoppable, uninterrupted

pytestmark = pytest.mark.usefixtures("without_report")


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_raises_stopped_with_the_shell_exit_code(number: signal.Signals, code: int) -> None:
    with pytest.raises(Stopped) as stopped, stoppable():
        send(number)
    assert stopped.value.code == code
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_signal_takes_effect_after_an_uninterrupted_block() -> None:
    done: list[str] = []

    def act() -> None:
        with uninterrupted():
            with uninterrupted():
                send(signal.SIGTERM)
            done.append("whole")
        done.append("more")

    with pytest.raises(Stopped), stoppable():
        act()
    assert done == ["whole"]


def test_deferred_signal_takes_effect_between_steps_or_at_the_end_of_the_block() -> None:
    done: list[str] = []

    def act(steps: bool) -> None:
        with deferred():
            send(signal.SIGTERM)
            done.append("first step")
            if steps:
                stop_if_requested()
            done.append("second step")
        done.append("more")

    with pytest.raises(Stopped), stoppable():
        act(steps=True)
    with pytest.raises(Stopped), stoppable():
        act(steps=False)
    assert done == ["first step", "first step", "second step"]


def test_only_the_first_signal_counts() -> None:
    done: list[str] = []

    def act() -> None:
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGINT)
            done.append("the last things")

    with pytest.raises(Stopped) as stopped, stoppable():
        act()
    assert done == ["the last things"]
    assert stopped.value.code == 143


def test_swallowed_signal_takes_effect_after_the_next_uninterrupted_block() -> None:
    def act() -> None:
        with suppress(KeyboardInterrupt):  # as Python itself does in a destructor
            send(signal.SIGINT)
        with uninterrupted():
            pass

    with pytest.raises(Stopped), stoppable():
        act()


def test_stoppable_restores_handlers_and_keeps_foreign_ones() -> None:
    usual = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stoppable(), stoppable():
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == usual
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with stoppable():
            send(signal.SIGTERM)
        send(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, usual[1])
    assert heard == [signal.SIGTERM] * 2


def test_stoppable_works_outside_of_the_main_thread() -> None:
    ran: list[bool] = []

    def act() -> None:
        with stoppable(), uninterrupted():
            ran.append(True)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    assert ran == [True]


# -- a run ------------------------------------------------------------------------------------------------------------


def made(name: str, store: str) -> Setup:
    """No checkpoint is due before the end."""
    return small_runs.setup(name, clients=3, partition="iid", rounds=3, eval_every=1, checkpoint_every=99, store=store)


def conducted(setup: Setup, out: Path) -> dict[str, Any]:
    with RunDir(out) as folder:
        run_experiment(setup, folder)
    return report(out)


def report(out: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {k: v for k, v in summary.items() if k != "seconds"} | {
        "lines": [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    }


def stop_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Ctrl-C just before the given call of a function, counted from 1."""
    real: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def counted(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(owner, name, counted)


# Where a run of three clients is stopped, how often that is called in a round, and by which method.
PLACES = [
    (LoopBackend, "_take_part", 3, "ditto"),  # in the middle of training
    (LoopBackend, "_take_part", 6, "fedmd"),  # in the second exchange, when states of the first are new
    (LoopBackend, "commit", 3, "scd"),  # when some states are new
    (LoopBackend, "_take_part", 6, "fedpd"),  # when the server has changed what it keeps of some clients
    (MetricsWriter, "evaluate", 1, "fedavg"),  # when everything is new and nothing is entered
    (MetricsWriter, "write", 1, "ditto"),
]


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize(("owner", "name", "often", "method"), PLACES)
def test_interrupted_round_leaves_no_trace_in_the_run(
    owner: Any, name: str, often: int, method: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the third round, after its last call but one: the second one is kept, and the end is the same."""
    setup = made(method, store)
    whole = conducted(setup, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, owner, name, 3 * often)
        with pytest.raises(KeyboardInterrupt):
            conducted(setup, tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["round-000002"]
    assert not (tmp_path / "run" / "summary.json").exists()
    assert conducted(setup, tmp_path / "run") == whole


def test_run_stopped_in_its_first_round_has_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = made("ditto", "memory")
    with monkeypatch.context() as patch:
        stop_at(patch, LoopBackend, "_take_part", 2)
        with pytest.raises(KeyboardInterrupt):
            conducted(setup, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert conducted(setup, tmp_path / "run") == conducted(setup, tmp_path / "whole")


class Chain:
    """Something with a past, as an accountant or a log is."""

    def __init__(self) -> None:
        self.length, self.taken = 0, list[Any]()

    def to_json(self) -> Any:
        return {"length": self.length}

    def take_over(self, stored: Any) -> None:
        self.taken.append(stored)


def test_checkpoint_of_a_stopped_run_has_extras_of_the_last_whole_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain grows by one link for each client; it is stopped in the third round, at its eighth link."""
    setup, chain = made("ditto", "memory"), Chain()
    with RunDir(tmp_path) as folder:
        experiment = build_experiment(setup, folder)
        experiment.checkpointing.extras["chain"] = chain
        participate = LoopBackend._take_part

        def linked(*args: Any) -> Any:
            chain.length += 1
            if chain.length == 8:
                raise KeyboardInterrupt
            return participate(*args)

        monkeypatch.setattr(LoopBackend, "_take_part", linked)
        with pytest.raises(KeyboardInterrupt):
            experiment.run(lambda done, line: None)
        heir = build_experiment(setup, folder)
        heir.checkpointing.extras |= {"chain": chain, "new_client": Chain()}
        heir.resume()
    assert chain.taken == [None, {"length": 6}]  # nothing to take over at first
    assert heir.checkpointing.extras["new_client"].taken == [None]  # type: ignore[attr-defined]
    assert heir.progress.run_state.round == 2


@pytest.mark.promise("Stopping and resuming", "A signal inside a batched call loses no whole round.")
@pytest.mark.parametrize("function", ["_vmap_increment_nesting", "_vmap_decrement_nesting"])
@pytest.mark.parametrize(("call", "whole"), [(3, 2), (5, 3)], ids=["training", "evaluation"])
def test_signal_on_the_way_into_or_out_of_a_vmap_saves_the_last_whole_round(
    call: int, whole: int, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception at these moments would leave torch with a level too many or too few, and lose the whole rounds.

    Every round trains in one call; the fourth and last one is followed by two calls that evaluate models.
    """
    setup = small_runs.setup(
        "fedavg", clients=3, partition="iid", rounds=4, eval_every=4, checkpoint_every=99, backend="vmap"
    )
    real: Callable[..., Any] = getattr(torch._functorch.vmap, function)
    calls = [0]

    def interrupted(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            send(signal.SIGTERM)
        return real(*args)

    run_experiment(setup)  # Torch's self-test uses a vmap too, once.
    monkeypatch.setattr(torch._functorch.vmap, function, interrupted)
    with RunDir(tmp_path) as folder, pytest.raises(Stopped) as stopped:
        run_experiment(setup, folder)
    assert stopped.value.code == 143
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"round-{whole:06d}"]
    assert torch._C._functorch.maybe_current_level() is None  # Torch is in order.
    monkeypatch.undo()
    assert conducted(setup, tmp_path)["digest"] == run_experiment(setup).summary["digest"]


def test_error_of_a_library_after_a_signal_counts_as_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = made("fedavg", "memory")

    def fail(*_: Any) -> None:
        with suppress(KeyboardInterrupt):
            send(signal.SIGTERM)
        raise RuntimeError("INTERNAL ASSERT FAILED")

    monkeypatch.setattr(MetricsWriter, "evaluate", fail)
    with RunDir(tmp_path) as folder, pytest.raises(Stopped) as stopped:
        run_experiment(setup, folder)
    assert stopped.value.code == 143
