"""The direction of imports: every package imports only what lies below it, and no module is in a cycle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import atoll

ROOT = Path(atoll.__file__).parent

# From bottom to top: a module imports from its own package and from those that come before it here.
LAYERS = (
    "_version", "errors", "typing", "utils", "core", "aggregation", "data", "models", "methods", "clients", "backends",
    "simulation", "privacy", "config", "storage", "engine", "inference", "analysis", "report", "api",
    "experiments", "deploy", "dashboard", "cli",
)  # fmt: skip


# Methods ``plot()`` of data and results draw with the report's plots, loaded only when they are called: the one way up.
DRAWING = {
    ("data.federated_dataset", "report.plots"),
    ("engine.result", "report.figures"),
    ("inference.adaptation_result", "report.plots.few_shot"),
    ("inference.adaptation_files", "report.style"),
}


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name below ``atoll``."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str, lazy: bool) -> Iterator[str]:
    """Yield the modules that ``module`` imports: at its top level, or with ``lazy`` also inside functions."""
    tree = ast.parse(MODULES[module].read_text())
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    parts = module.split(".") if module else []
    package = parts if MODULES[module].name == "__init__.py" else parts[:-1]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                inner = ".".join([*base, alias.name])
                yield inner if inner in MODULES else ".".join(base)


def layer(module: str) -> int:
    return LAYERS.index(module.split(".")[0])


def test_every_package_has_a_layer() -> None:
    assert {module.split(".")[0] for module in MODULES} - {"", "__main__"} == set(LAYERS)


def test_no_module_imports_from_a_layer_above_its_own() -> None:
    upward = [
        f"{module} imports {other}"
        for module in MODULES
        if module not in ("", "__main__")
        for other in imports(module, lazy=True)
        if other and layer(other) > layer(module) and (module, other) not in DRAWING
    ]

    assert upward == []


def test_no_cycle_of_imports() -> None:
    """Depth-first search over top-level imports; a module that is met again before it is finished is in a cycle."""
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in finished:
            for other in imports(module, lazy=False):
                if other != module:
                    visit(other, (*path, module))
            finished.add(module)

    for module in MODULES:
        visit(module, ())


def test_the_root_has_a_handful_of_modules() -> None:
    assert sorted(path.name for path in ROOT.glob("*.py")) == [
        "__init__.py", "__main__.py", "_version.py", "api.py", "errors.py", "typing.py",
    ]  # fmt: skip


def test_every_module_has_a_docstring() -> None:
    assert [name for name, path in MODULES.items() if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_commands_and_dashboard_do_not_train() -> None:
    """They read options, call the packages below and print: nothing there needs the language of methods or torch."""
    work = ("core.optim", "core.losses", "aggregation", "backends", "engine.round", "clients.participation")
    found = [
        f"{module} imports {other}"
        for module in MODULES
        if module.split(".")[0] in ("cli", "dashboard")
        for other in imports(module, lazy=True)
        if other.startswith(work)
    ]

    assert found == []
