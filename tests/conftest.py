"""Fixtures that all tests share."""

import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import pytest
import torch
from click.testing import CliRunner, Result
from support.run_files import draw_no_report

from atoll.cli import main

Atoll = Callable[..., Result]

# Tests run side by side: more than one thread each would make them wait for one another.
torch.set_num_threads(1)

# A shell starts background jobs deaf to Ctrl-C, and so would be every process that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave modules and the thousands of collected tests out of garbage collection, as a run does for itself."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own folders, nor the one that pytest was started in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLCONFIGDIR", matplotlib.get_configdir())  # or every process would list all fonts again
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATOLL_DATA", raising=False)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs and comparisons write neither report nor figures."""
    draw_no_report(monkeypatch)


@pytest.fixture(scope="module")
def module_without_report() -> Iterator[None]:
    """Do as ``without_report`` for a whole module, and for its fixtures that ask for this one."""
    with pytest.MonkeyPatch.context() as patch:
        draw_no_report(patch)
        yield


@pytest.fixture
def atoll() -> Atoll:
    """The command line inside this process; an exception that would be shown as a traceback fails the test."""

    def invoke(*words: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(word) for word in words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return invoke


@pytest.fixture
def refused(atoll: Atoll) -> Callable[..., str]:
    """What the command line says of a mistake: exit code 2, one message on standard error, nothing else."""

    def invoke(*words: object) -> str:
        result = atoll(*words, code=2)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert result.stderr.lstrip().startswith("Error: ")
        assert result.stderr.count("Error: ") == 1
        assert result.stderr.count("\n") == 1
        return " ".join(result.stderr.split())

    return invoke
