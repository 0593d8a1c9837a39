"""A client whose code fails or makes an upload that cannot be sent: the run equals one without that client."""

from dataclasses import replace
from typing import Any

import pytest
from support.odd_uploads import ODD, Odd
from support.small_runs import setup

from atoll.backends.loop import _checked_state
from atoll.core.payloads import Nothing
from atoll.engine import cohort
from atoll.engine.build import run_experiment
from atoll.engine.cohort import sample_cohort
from atoll.engine.result import Result
from atoll.errors import AtollError

ROWS = 325  # so that no two clients have the same number of rows, by which the odd client is recognised


def run_odd(kind: str, backend: str, everybody: bool = False, **changes: Any) -> Result:
    made = setup("fedavg", backend=backend, rows=ROWS, **{"strikes": 0, "rounds": 4 if everybody else 3} | changes)
    rows = 0.0 if everybody else float(made.pool.train.size(1))
    return run_experiment(replace(made, method=Odd(optim=made.method.optim, kind=kind, bad=rows)))


@pytest.fixture(scope="module")
def absent() -> Result:
    """The same run without client 1."""
    made = setup("fedavg", strikes=0, rows=ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohort, "sample_cohort", lambda *args: [i for i in sample_cohort(*args) if i != "1"])
        return run_experiment(made)


@pytest.mark.parametrize("backend", ["loop", "processes"])
@pytest.mark.parametrize("kind", ODD)
def test_odd_upload_of_one_client_equals_its_absence(kind: str, backend: str, absent: Result) -> None:
    result = run_odd(kind, backend)

    rejected = [entry for line in result.history for entry in line["rejected"]]
    assert [(entry["client"], entry["round"]) for entry in rejected] == [("1", 1), ("1", 2), ("1", 3)]
    assert result.summary["digest"] == absent.summary["digest"]
    assert any("Rejected uploads: 3 of client '1'" in note for note in result.notes)


def test_reason_of_a_rejection_is_the_same_in_the_loop_and_in_processes() -> None:
    for kind in ("sparse", "exception"):
        loop, processes = (run_odd(kind, backend).history[-1]["rejected"] for backend in ("loop", "processes"))
        assert loop == processes


def test_note_names_the_exception_and_its_place() -> None:
    (note,) = (note for note in run_odd("exception", "loop").notes if "Rejected" in note)
    assert "upload was not made: KeyError: 'no such key' (odd_uploads.py line " in note


def test_client_is_excluded_after_as_many_failures_as_strikes() -> None:
    result = run_odd("exception", "loop", strikes=2)
    assert "Client '1' was excluded after 2 rejected uploads." in result.notes


@pytest.mark.parametrize("backend", ["loop", "processes"])
def test_error_of_all_clients_is_raised_with_its_traceback(backend: str) -> None:
    with pytest.raises(KeyError, match="no such key") as caught:
        run_odd("exception", backend, everybody=True)

    notes = "".join(caught.value.__notes__)
    assert "the code of all clients failed (5 of 5)" in notes
    assert backend == "loop" or "odd_uploads.py" in notes  # The loop's own traceback has the place.


def test_exit_of_all_clients_is_an_error_with_a_remedy() -> None:
    with pytest.raises(AtollError, match=r"called sys.exit\(0\)"):
        run_odd("exit", "loop", everybody=True)


def test_exception_that_cannot_be_pickled_keeps_its_text() -> None:
    with pytest.raises(RuntimeError, match="BadError: complaint of one client"):
        run_odd("own exception", "processes", everybody=True)


def test_state_that_cannot_be_stored_is_an_error_of_the_method() -> None:
    made = setup("local", rows=ROWS)

    with pytest.raises(AtollError, match="The state that Local keeps at a client"):
        _checked_state(made.method, Nothing())
