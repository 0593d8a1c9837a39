"""Cohorts of rounds: sampling, absences, and whose models an evaluation reports."""

from collections.abc import Collection, Sequence

import pytest

from atoll.engine import cohort as cohort_module
from atoll.engine.cohort import Cohorts, sample_cohort
from atoll.simulation.faults import read_faults

CLIENTS = ("a", "b", "c", "d")


def cohorts(rate: float = 0.5, eval_every: int = 3, deadline: float | None = None, drop: str | None = None) -> Cohorts:
    faults = read_faults(CLIENTS, 0, drop=drop)
    return Cohorts(CLIENTS, rate, 0, faults, rounds=7, eval_every=eval_every, deadline=deadline)


def test_sample_has_at_least_one_client_in_the_order_of_the_federation() -> None:
    assert len(sample_cohort(CLIENTS, 0.01, 0, 0)) == 1
    for t in range(10):
        sampled = sample_cohort(CLIENTS, 0.5, 0, t)
        assert sampled == sorted(set(sampled))
        assert len(sampled) == 2


def test_client_that_drops_out_does_not_answer() -> None:
    assert cohorts(rate=1.0, drop="client:b").answering(0) == {"a", "c", "d"}


def test_every_third_round_and_the_last_are_evaluated() -> None:
    assert [t for t in range(7) if cohorts().is_evaluated(t)] == [2, 5, 6]


def test_only_clients_that_do_not_train_again_before_the_evaluation_are_measured() -> None:
    made = cohorts()
    later = set(made.sample(1)) | set(made.sample(2))

    assert made.to_evaluate(0) == set(made.sample(0)) - later
    assert made.to_evaluate(2) == set(made.sample(2))


@pytest.mark.parametrize("drop", [None, "0.4"])
@pytest.mark.parametrize("start", [0, 4])
def test_window_is_drawn_once_with_the_same_cohorts(
    start: int, drop: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins in round ``start``, as a resumed one may, and is evaluated every five rounds."""
    ids = tuple(f"c{at}" for at in range(30))
    made = Cohorts(ids, 0.2, 3, read_faults(ids, 3, drop=drop), rounds=12, eval_every=5)
    drawn, real = list[int](), sample_cohort

    def counted(clients: Sequence[str], rate: float, seed: int, t: int, busy: Collection[str] = ()) -> list[str]:
        drawn.append(t)
        return real(clients, rate, seed, t, busy)

    monkeypatch.setattr(cohort_module, "sample_cohort", counted)
    for t in range(start, 12):
        ends = next(later for later in range(t, 12) if made.is_evaluated(later))
        answers = {
            later: {i for i in real(ids, 0.2, 3, later) if not made.faults.absence(later, i)}
            for later in range(t, ends + 1)
        }
        later = set().union(*(answers[at] for at in range(t + 1, ends + 1)))

        assert made.to_evaluate(t) == answers[t] - later
        assert made.sample(t) == real(ids, 0.2, 3, t)

    assert drawn == list(range(start, 12))


@pytest.mark.parametrize("t", range(7))
def test_with_a_deadline_all_clients_of_a_round_are_measured(t: int) -> None:
    made = cohorts(deadline=1.0)

    assert made.to_evaluate(t) == set(made.sample(t))
