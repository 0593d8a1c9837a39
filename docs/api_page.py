"""The page of the Python interface, cut out of the sources: signatures and fields as they stand there, docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "atoll"
REST = {
    "atoll.core": "Further names that methods are written with.",
    "atoll.aggregation": "Further names that combine uploads.",
}
SECTIONS = {
    "Run": (
        "What a configuration file or the command line says can be said in Python, with the same names: the options of "
        "[a run](ref-options.md#a-run).",
        ["atoll.run", "atoll.Result", "atoll.Dataset", "atoll.AtollError"],
    ),
    "Several runs": (
        "Each call leaves the files of its command: `atoll compare`, `atoll sweep` and `atoll paper run`.",
        [
            "atoll.run_compare",
            "atoll.make_dataset",
            "atoll.open_compare",
            "atoll.Comparison",
            "atoll.run_sweep",
            "atoll.Sweep",
            "atoll.run_paper",
            "atoll.PaperResult",
        ],
    ),
    "Use the models": (
        "Of a run directory, or of a site that took part in a deployment.",
        [
            "atoll.open_run",
            "atoll.inference.models.TrainedModels",
            "atoll.inference.models.SavedRun",
            "atoll.adapt",
            "atoll.deploy.site.models.personal_model",
            "atoll.deploy.site.models.open_site",
        ],
    ),
    "Methods": (
        "[Write a method](tutorial-write-a-method.md) goes through these one after the other.",
        [
            "atoll.Method",
            "atoll.Client",
            "atoll.Task",
            "atoll.core.Round",
            "atoll.core.Reply",
            "atoll.core.Need",
            "atoll.core.setting",
            "atoll.core.contract",
            "atoll.core.within",
            "atoll.core.one_of",
            "atoll.methods._registry.methods",
            "atoll.methods._registry.method",
            "atoll.methods._factory.make",
        ],
    ),
    "Payloads": (
        "What travels and what is kept.",
        [
            "atoll.core.payload",
            "atoll.core.about",
            "atoll.core.Role",
            "atoll.core.Nothing",
            "atoll.core.pack",
            "atoll.core.unpack",
            "atoll.core.nbytes",
        ],
    ),
    "Models": (
        "Networks as pure functions of their parameters (`Params`, a dictionary of tensors).",
        [
            "atoll.Model",
            "atoll.core.Batch",
            "atoll.core.Step",
            "atoll.core.part",
            "atoll.core.weights",
            "atoll.models.split",
            "atoll.models.build",
        ],
    ),
    "Training": (
        "The one loop over batches, what it takes, and what can be made of its results.",
        [
            "atoll.core.Optimiser",
            "atoll.core.SGD",
            "atoll.core.Adam",
            "atoll.core.Problem",
            "atoll.core.Classes",
            "atoll.core.Labels",
            "atoll.core.Numbers",
            "atoll.core.NextToken",
            "atoll.core.Criterion",
            "atoll.core.cross_entropy",
            "atoll.core.wmean",
            "atoll.aggregation.averaging.mean",
            "atoll.core.with_policy_of",
            "atoll.core.add",
            "atoll.core.sub",
            "atoll.core.sqnorm",
            "atoll.core.Regulariser",
            "atoll.core.class_means",
            "atoll.core.covariances",
        ],
    ),
    "Keys": (
        "Randomness as a value: the same key gives the same numbers.",
        [
            "atoll.core.key",
            "atoll.core.fold",
            "atoll.core.uniform",
            "atoll.core.normal",
            "atoll.core.randint",
            "atoll.core.permutation",
        ],
    ),
}


def api_page(note: str) -> str:
    parts = ["# Python interface", note, "What is listed here is meant to be used; everything else may change."]
    for title, (text, names) in SECTIONS.items():
        parts += [f"## {title}", text, *(part for name in names for part in _entry(name))]
    for module, text in REST.items():
        names = _unlisted(module)
        parts += [f"## The rest of `{module}`", text, *(part for name in names for part in _entry(name))]
    return "\n\n".join(parts) + "\n"


def _unlisted(module: str) -> list[str]:
    """Return the exported names of a module that no section lists, the functions and classes first."""
    listed = {name.rpartition(".")[2] for _, names in SECTIONS.values() for name in names}
    names = [f"{module}.{name}" for name in sorted(import_module(module).__all__) if name not in listed]
    return sorted(names, key=lambda name: _is_value(name))


def _is_value(dotted: str) -> bool:
    """Return True for constants and names of types, which have no source of their own."""
    module, _, name = dotted.rpartition(".")
    thing: Any = inspect.unwrap(getattr(import_module(module), name))
    return not (inspect.isclass(thing) or inspect.isfunction(thing)) or thing.__name__ != name


def _assignment(name: str) -> tuple[str, str]:
    """Return the statement that defines a constant or the name of a type, and the module that holds it."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if f"{name}" in text else ():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in [getattr(t, "id", "") for t in targets]:
                lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
                return "\n".join(lines), path.relative_to(SOURCE).as_posix()
    raise ValueError(f"Nothing assigns {name}.")


def _entry(dotted: str) -> Iterator[str]:
    module, _, name = dotted.rpartition(".")
    thing: Any = getattr(import_module(module), name)
    if _is_value(dotted):
        statement, file = _assignment(name)
        yield f"### `{dotted}`"
        yield f"<!-- not run: signatures only -->\n```python\n{statement}\n```"
        yield f"Defined in [`{file}`](../src/atoll/{file})."
        return
    source = textwrap.dedent(inspect.getsource(thing))
    [node] = ast.parse(source).body
    lines = source.splitlines()
    shown = _class(node, lines) if isinstance(node, ast.ClassDef) else _signature(node, lines)
    yield f"### `{dotted}`"
    yield "<!-- not run: signatures only -->\n```python\n" + "\n".join(shown) + "\n```"
    yield from _text(inspect.cleandoc(ast.get_docstring(node) or ""))


def _text(docstring: str) -> Iterator[str]:
    """Turn a docstring into Markdown: sections such as ``Args:`` become lists, and examples blocks of code."""
    for part in docstring.split("\n\n"):
        title, _, body = part.partition("\n")
        if title == "Example:":
            yield f"<!-- not run: an example -->\n```python\n{textwrap.dedent(body)}\n```"
        elif title.endswith(":") and body.startswith("    "):
            entries = re.sub(r"\n\s+", " ", re.sub(r"\n {4}(?=\S)", "\n- ", "\n" + body)).strip()
            if title == "Args:":
                title, entries = "Parameters:", re.sub(r"^- ([\w, ]+):", r"- `\1`:", entries, flags=re.MULTILINE)
            yield f"**{title.removesuffix(':')}**\n\n{_marked(entries)}"
        else:
            yield _marked(part)


def _marked(text: str) -> str:
    return re.sub(r":\w+:`(\w+)`", r"`\1`", text).replace("``", "`")


def _class(node: ast.ClassDef, lines: list[str]) -> list[str]:
    """Its first line, fields with what is said beside them, and public functions with their docstrings."""
    shown = lines[_first(node) - 1 : node.body[0].lineno - 1]  # a docstring stands below the block
    head, last = len(shown), None
    for part in node.body:
        if isinstance(part, ast.AnnAssign | ast.Assign):
            shown += [""] * isinstance(last, ast.FunctionDef) + lines[part.lineno - 1 : part.end_lineno]
            last = part
        elif isinstance(part, ast.FunctionDef) and (not part.name.startswith("_") or part.name == "__call__"):
            shown += [""] * (len(shown) > head) + _signature(part, lines)
            if ast.get_docstring(part):
                shown += lines[part.body[0].lineno - 1 : part.body[0].end_lineno]
            last = part
    return shown if len(shown) > head else [*shown[:-1], f"{shown[-1]} ..."]


def _signature(node: Any, lines: list[str]) -> list[str]:
    """From its decorators to the colon; a body in the same line, or none that is shown, becomes three dots."""
    own = lines[_first(node) - 1 : max(node.lineno, node.body[0].lineno - 1)]
    if ast.get_docstring(node) and isinstance(node, ast.FunctionDef) and node.col_offset:
        return own
    return [*own[:-1], re.sub(r":\s*(\.\.\.)?$", ": ...", own[-1])]


def _first(node: Any) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])
