"""The benchmark of rounds, for a few steps: it must compare like with like."""

import importlib.util
import sys
from types import ModuleType

import pytest
from support.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def rounds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rounds_benchmark", FOLDER / "rounds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_rounds_benchmark_has_models_of_the_stated_sizes(rounds: ModuleType) -> None:
    sizes = [sum(p.numel() for p in rounds.build(work).parameters()) for work in rounds.WORKS]
    assert sizes == [80_202, 80_202, 582_026, 2_621_558]


def test_compared_implementations_take_the_same_steps_and_are_timed(rounds: ModuleType) -> None:
    """What is compared has done the same steps: otherwise ``compared`` raises."""
    work = rounds.replace(rounds.WORKS[0], clients=4, sampled=2, rows=20)
    times = rounds.compared(work, 1, ("tuned", "plain"))
    assert {kind: len(taken) for kind, taken in times.items()} == {"atoll": 1, "tuned": 1, "plain": 1}
    assert all(time.wall > 0 and time.cpu > 0 for taken in times.values() for time in taken)


def test_comparison_of_different_work_is_detected(rounds: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LR", 0.05)
    work = rounds.replace(rounds.WORKS[0], clients=4, sampled=2, rows=20)
    setup = rounds.prepared(work)
    monkeypatch.setattr(rounds, "LR", 0.01)
    assert rounds.gap(work, setup) > rounds.AGREEMENT
