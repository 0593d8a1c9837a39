"""Run the notebooks and write their pages: ``python docs/notebooks.py [NAME ...]``.

A notebook in ``docs/notebooks`` is the source; its code runs from top to bottom in an empty folder, and what cells
print or draw becomes their output. The page beside it, for the site, follows from the notebook.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "notebooks"
PIXELS = 100  # of an inch of a figure
Notebook = dict[str, Any]


def read(name: str) -> Notebook:
    """Read a notebook by its name, without a suffix."""
    loaded: Notebook = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return loaded


def names() -> list[str]:
    """Return the names of all notebooks."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def run(notebook: Notebook) -> Iterator[list[dict[str, Any]]]:
    """Run the code cells one after the other, and yield the outputs of each."""
    scope: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            yield _run_cell("".join(cell["source"]), scope)


def _run_cell(source: str, scope: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), scope)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
    outputs = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if isinstance(value, Figure):
        outputs.append(_display({"image/png": _png(value), "text/plain": ["a figure"]}))
    elif value is not None:
        outputs.append(_display({"text/plain": repr(value).splitlines(True)}))
    return outputs


def _display(data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": "display_data", "metadata": {}, "data": data}


def _png(figure: Figure) -> str:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=PIXELS)
    return base64.b64encode(drawn.getvalue()).decode()


def page(name: str, notebook: Notebook) -> str:
    """Return the notebook as a page, with its figures as files beside it."""
    parts = [f"<!-- Made from {name}.ipynb by docs/notebooks.py. -->"]
    pictures = 0
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                parts.append(f"![Figure {pictures}]({name}-{pictures}.png)")
            else:
                text = "".join(output["text"] if "text" in output else data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    parts.append(f"[This page as a notebook]({name}.ipynb)")
    return "\n\n".join(parts) + "\n"


def figures(notebook: Notebook) -> list[bytes]:
    """Return the figures of a notebook as PNG."""
    found = [output["data"] for cell in notebook["cells"] for output in cell.get("outputs", ()) if "data" in output]
    return [base64.b64decode(data["image/png"]) for data in found if "image/png" in data]


def main() -> None:
    for name in sys.argv[1:] or names():
        notebook, here = read(name), Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            outputs = run(notebook)
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell["outputs"] = next(outputs)
            os.chdir(here)
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")
        for i, png in enumerate(figures(notebook), start=1):
            (FOLDER / f"{name}-{i}.png").write_bytes(png)
        (FOLDER / f"{name}.md").write_text(page(name, notebook), encoding="utf-8")
        print(f"Wrote {FOLDER / name}.ipynb and its page")


if __name__ == "__main__":
    main()
