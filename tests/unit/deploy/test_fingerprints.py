"""Digests of methods: equal only where server and sites have the same code."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from atoll.core.method import Method
from atoll.core.regularisers import Regularisers
from atoll.deploy.fingerprints import method_digest
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods._factory import make
from atoll.methods.fedavg import FedAvg

# An installed package: a method, its base class, a regulariser and an optimiser, each in a module of its own.
PACKAGE = {
    "__init__": "",
    "base": """
from dataclasses import dataclass
from atoll.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Base(FedAvg):
    pass
""",
    "method": """
from dataclasses import dataclass, field
from lent.base import Base
from lent.optimiser import Slow
from atoll.core import Optimiser

@dataclass(frozen=True)
class Lent(Base):
    optim: Optimiser = field(default=Slow())

def helper() -> int:
    return 1
""",
    "optimiser": """
from dataclasses import dataclass
from atoll.core import SGD

@dataclass(frozen=True)
class Slow(SGD):
    pass
""",
    "term": """
from dataclasses import dataclass
from atoll.core import Regulariser

class Common(Regulariser):
    pass

@dataclass(frozen=True)
class Term(Common):
    pass
""",
}


@pytest.fixture
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the package, which is importable."""
    folder = tmp_path / "lent"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lent"]:
        del sys.modules[name]


def installed() -> Method[Any, Any, Any, Any]:
    forget()
    importlib.invalidate_caches()
    terms = Regularisers([importlib.import_module("lent.term").Term()])
    made: Method[Any, Any, Any, Any] = importlib.import_module("lent.method").Lent(regularisers=terms)
    return made


@pytest.mark.parametrize("module", ["method", "base", "term", "optimiser"])
def test_an_edited_file_of_an_installed_method_changes_its_digest(module: str, lent: Path) -> None:
    before = method_digest(installed())
    assert method_digest(installed()) == before

    (lent / f"{module}.py").write_text(PACKAGE[module] + "\nMORE = 1\n")

    assert method_digest(installed()) != before


def test_a_method_file_has_the_same_digest_wherever_it_lies(tmp_path: Path) -> None:
    text = PACKAGE["base"]
    digests = []
    for place, source in (("server", text), ("site", text), ("edited", text + "\nMORE = 1\n")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_text(source)
        digests.append(method_digest(make(str(tmp_path / place / "mine.py"))))

    assert digests[0] == digests[1] != digests[2]


def test_a_class_without_readable_source_has_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    unread = ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", unread)
    for module in ("typed_in", "nowhere_to_be_found"):
        typed = dataclass(frozen=True)(type("Typed", (FedAvg,), {"__module__": module}))
        with pytest.raises(AtollError, match=rf"source of {module}\.Typed cannot be read"):
            method_digest(typed())


def test_every_method_of_the_package_has_a_digest_of_its_own() -> None:
    digests = {method_digest(make(name)) for name in _registry.methods()}

    assert len(digests) == len(_registry.methods())
