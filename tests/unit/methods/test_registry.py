"""Which methods there are, and methods in the user's own files."""

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from atoll import methods as package
from atoll import run
from atoll.core import check_functions, contract
from atoll.core.method import Method
from atoll.core.regularisers import Regulariser
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods._factory import make
from atoll.methods.fd import FD
from atoll.methods.fedavg import FedAvg, Global

METHODS = sorted(_registry.methods())

WORKING = '''
"""Halved. A test, 2026. https://example.org/halved

client:  w_k = SGD(w_t) / 2
"""

from dataclasses import dataclass, replace

from atoll.core import Client, setting
from atoll.core import Key, Round
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.core import Nothing


@dataclass(frozen=True)
class Halved(FedAvg):
    share: float = setting(0.5, "what is left of the weights", "chosen here")

    traits = FedAvg.traits._replace(variants={"whole": {"share": 1.0}})

    def client_update(
        self, down: Global, state: Nothing, client: Client, r: Round, k: Key
    ) -> tuple[Update, Nothing]:
        up, state = super().client_update(down, state, client, r, k)
        return replace(up, params={name: v * self.share for name, v in up.params.items()}), state
'''


def written(path: Path, text: str) -> str:
    path.write_text(dedent(text))
    return str(path)


# -- the package's own ------------------------------------------------------------------------------------------------


def test_every_file_is_a_method() -> None:
    files = {p.stem for p in Path(package.__path__[0]).glob("*.py") if not p.name.startswith("_")}
    assert set(_registry.methods()) == files
    assert {"local", "fedavg", "fedavg_ft", "fedproto", "fedgh", "dcpfl", "pfedes", "ditto"} <= files


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_class_that_bears_the_name_of_its_file(name: str) -> None:
    cls = _registry.method(name)
    assert issubclass(cls, Method)
    assert cls.__name__.lower() == name.replace("_", "")
    assert Path(inspect.getfile(cls)).stem == name


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_where_it_comes_from_and_what_it_does(name: str) -> None:
    card = _registry.method_info(_registry.method(name))
    assert card.title
    assert "\n" not in card.citation
    assert "client:" in card.algorithm
    assert card.url.startswith("http") or name in ("local", "fedavg_ft")
    if card.url:
        assert card.year is not None
        assert 2015 <= card.year <= 2026
        assert card.url not in card.citation


def test_regularisers_are_found_by_the_names_of_their_classes() -> None:
    found = _registry.regularisers()
    assert {"dw", "proximal"} <= set(found)
    assert all(issubclass(cls, Regulariser) for cls in found.values())


@pytest.mark.parametrize(
    "classes",
    [
        {},
        {"Other": type("Other", (FedAvg,), {"__module__": "somewhere"})},
        {"Somewhere": type("Somewhere", (), {"__module__": "somewhere"})},
        {"Somewhere": type("Somewhere", (FedAvg,), {"__module__": "elsewhere"})},  # only imported there
    ],
)
def test_a_file_without_a_method_of_its_name_is_refused(classes: dict[str, Any]) -> None:
    module = ModuleType("somewhere")
    vars(module).update(classes)
    with pytest.raises(TypeError, match="somewhere must define one method that is named like the file"):
        _registry._method_of(module, "somewhere")


def test_an_unknown_method_suggests_the_nearest() -> None:
    with pytest.raises(AtollError, match=r"Unknown method 'fedprxo'\. Did you mean 'fedprox'\?"):
        _registry.method("fedprxo")


# -- the user's own ---------------------------------------------------------------------------------------------------


def test_a_method_in_a_file_runs_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "my_method.py", WORKING)
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {"rows": 300, "clients": 3, "rounds": 2, "epochs": 1}
    mine, whole, fedavg = (run(name, **small) for name in ("./my_method.py", "./my_method.py:whole", "fedavg"))
    assert mine.summary["digest"] != fedavg.summary["digest"]
    assert whole.summary["digest"] == fedavg.summary["digest"]
    assert _registry.method_info(_registry.method("my_method.py")).title == "Halved"


def test_settings_reach_a_method_in_a_file(tmp_path: Path) -> None:
    made: Any = make(written(tmp_path / "m.py", WORKING), {"share": "0.25"})
    assert made.share == 0.25


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    name = written(tmp_path / "m.py", WORKING)
    first: Any = make(name)
    assert _registry.method(name) is type(first)
    written(tmp_path / "m.py", WORKING.replace("setting(0.5", "setting(0.125"))
    second: Any = make(name)
    assert (first.share, second.share) == (0.5, 0.125)


def test_files_of_the_same_name_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    first: Any = make(written(tmp_path / "a" / "m.py", WORKING))
    second: Any = make(written(tmp_path / "b" / "m.py", WORKING.replace("0.5", "0.75")))
    assert (first.share, second.share) == (0.5, 0.75)


HEAD = """
from dataclasses import dataclass
from atoll.core import Method
from atoll.methods.fedavg import Averaging, FedAvg
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def method(:", "cannot be imported: SyntaxError"),
        ("import a_module_that_nobody_has", "cannot be imported: ModuleNotFoundError"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
        ("", "must define exactly one Method class; it has 0"),
        (HEAD, "must define exactly one Method class; it has 0"),
        (HEAD + "class A(FedAvg): ...\nclass B(FedAvg): ...\n", "must define exactly one Method class; it has 2"),
        (HEAD + "class A(Method): ...\n", "must be a dataclass"),
        (HEAD + "@dataclass\nclass A(Method):\n    lam: float = 1\n", "must be frozen: write @dataclass(frozen=True)"),
        (HEAD + "@dataclass(frozen=True, kw_only=True)\nclass A(FedAvg):\n    lam: float\n", "lam has no default"),
        (
            HEAD + "@dataclass(frozen=True)\nclass A(FedAvg):\n    def client_update(self, down): ...\n",
            "A.client_update takes (down), but is called with (down, state, client, r, k)",
        ),
        (
            HEAD + "@dataclass(frozen=True)\nclass A(FedAvg):\n    def init_server(self, task, k): ...\n",
            "Annotate what A.init_server returns with a payload class",
        ),
        (
            HEAD + "@dataclass(frozen=True)\nclass A(Method): ...\n",
            "A does not define init_server, broadcast, client_update, ",
        ),
        (
            HEAD + "@dataclass(frozen=True)\nclass A(Averaging): ...\n",
            "A does not define client_update, personal_params. A method needs",
        ),
    ],
)
def test_broken_method_file_is_refused_with_the_reason(text: str, said: str, tmp_path: Path) -> None:
    name = written(tmp_path / "broken.py", text)
    before = set(sys.modules)
    for _ in range(2):  # the second time too
        with pytest.raises(AtollError) as caught:
            _registry.method(name)
        assert said in str(caught.value)
        assert "broken.py" in str(caught.value)
    assert "cannot be imported" not in said or set(sys.modules) == before


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_package_defines_all_that_a_method_needs(name: str) -> None:
    check_functions(_registry.method(name), name)


@pytest.mark.parametrize("function", ["init_server", "broadcast", "client_update", "aggregate", "personal_params"])
def test_missing_method_function_is_named_in_the_error(function: str, tmp_path: Path) -> None:
    text = dedent(WORKING) + f"\n\nHalved.{function} = Method.{function}\n"
    name = written(tmp_path / "m.py", text.replace("import Client", "import Client, Method"))

    with pytest.raises(AtollError, match=f"Halved does not define {function}. A method needs init_server, "):
        _registry.method(name)


@pytest.mark.parametrize("function", ["init_per_client", "broadcast_per_client", "serve_client"])
def test_method_with_per_client_state_needs_serve_functions_instead_of_broadcast(function: str) -> None:
    class Desked(FD):
        broadcast = Method.broadcast

    check_functions(Desked, "Desked")
    Lacking = type("Desked", (Method,), {name: v for name, v in vars(FD).items() if name != function})
    with pytest.raises(AtollError, match=f"Desked does not define {function}"):
        check_functions(Lacking, "Desked")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def agregate(self, server, replies, task, r, k): ...", "does not define aggregate (is it agregate?)"),
        ("def after_uplod(self, down, up, state, client, r, k): ...", "Is it after_upload? Else rename it."),
        ("def after_upload(self, down, up, state, client, k): ...", "is called with (down, up, state, client, r, k)"),
    ],
)
def test_misspelt_or_malformed_function_is_named(text: str, said: str, tmp_path: Path) -> None:
    if "agregate" in text:
        text += "\n    aggregate = Method.aggregate"
    name = written(tmp_path / "m.py", HEAD + f"@dataclass(frozen=True)\nclass A(FedAvg):\n    {text}\n")

    with pytest.raises(AtollError) as caught:
        _registry.method(name)

    assert said in str(caught.value)


def test_an_object_without_a_function_is_refused_before_it_runs() -> None:
    class Unfinished(FedAvg):
        aggregate = Method.aggregate

    with pytest.raises(AtollError, match="Unfinished does not define aggregate"):
        run(Unfinished(), clients=3, rounds=1)


def test_the_download_of_a_method_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = WORKING.replace("down: Global", "received: Global").replace(
        "super().client_update(down", "super().client_update(received"
    )
    monkeypatch.chdir(tmp_path)
    usual, other = (make(written(tmp_path / f"{n}.py", text)) for n, text in (("a", WORKING), ("b", renamed)))

    assert contract(other) == contract(usual)
    assert contract(other).exchanges[0].download is Global
    run("./b.py", clients=3, rounds=1, epochs=1)


@pytest.mark.parametrize("name", ["nowhere.py", "./nowhere/at_all.py"])
def test_missing_method_file_is_refused(name: str) -> None:
    with pytest.raises(AtollError, match="no method file"):
        _registry.method(name)


def test_folder_as_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.py").mkdir()
    with pytest.raises(AtollError, match="no method file"):
        _registry.method(str(tmp_path / "m.py"))


# -- methods of other packages -----------------------------------------------------------------------------------------


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Installs a package with one module and the entry points given."""

    def install(points: str) -> None:
        (tmp_path / "other_package.py").write_text(
            "from dataclasses import dataclass\nfrom atoll.methods.fedprox import FedProx\n"
            "from atoll.core.regularisers import Regulariser\n"
            "@dataclass(frozen=True)\nclass Stronger(FedProx):\n    mu: float = 7.0\n"
            "@dataclass(frozen=True)\nclass Extra(Regulariser):\n    weight: float = 1.0\n"
        )
        info = tmp_path / "other_package-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(tmp_path))
        _forget()

    yield install
    monkeypatch.undo()
    sys.modules.pop("other_package", None)
    _forget()


def _forget() -> None:
    _registry.methods.cache_clear()
    _registry.regularisers.cache_clear()


def test_other_packages_add_methods_and_regularisers(plugin: Callable[[str], None]) -> None:
    plugin("[atoll.methods]\nstronger = other_package:Stronger\n[atoll.regularisers]\nextra = other_package:Extra\n")
    assert make("stronger").mu == 7.0  # type: ignore[attr-defined]
    assert "extra" in _registry.regularisers()
    assert "fedavg" in _registry.methods()


@pytest.mark.parametrize("value", ["other_package:Missing", "no_such_package:X", "other_package:Extra"])
def test_a_broken_package_is_told_and_left_out(value: str, plugin: Callable[[str], None]) -> None:
    plugin(f"[atoll.methods]\nfaulty = {value}\n")
    with pytest.warns(UserWarning, match="faulty"):
        known = _registry.methods()
    assert "faulty" not in known
    assert "fedavg" in known


def test_plugin_cannot_replace_a_built_in_method(plugin: Callable[[str], None]) -> None:
    plugin("[atoll.methods]\nfedavg = other_package:Stronger\n")
    assert _registry.method("fedavg").__module__ == "atoll.methods.fedavg"
