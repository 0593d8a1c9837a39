"""Make the pages of the site: ``python docs/site.py FOLDER`` writes them there, for Zensical to build.

Pages are written to be read in the repository, where a link may lead to a source file or a folder. On the site these
have pages of their own, under ``source``. The navigation follows from the list in ``docs/README.md``.
"""

import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")
EQUATION = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"\$([^$\n]+)\$")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^):]+)\)")
TABLE = re.compile(r"^\|.*\|\n\|[ |:-]+\|\n(?:\|.*\|(?:\n|\Z))+", re.MULTILINE)
NUMBER = re.compile(
    r"[*~≤<±+\s-]*\d[\d,.]*(?:e[-+]?\d+)?(?:\s*(?:±|to)\s*[-+]?[\d.]+)?(?:\s*(?:%|[kMGT]?B|s|ms|×|points?))?\**|[-–]?"
)  # or nothing
SHOWN = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml", ".csv": "text", ".md": "markdown"}
PUBLISHED = {".md", ".svg", ".png", ".css", ".js", ".ipynb"}
NOT_PUBLISHED = {"measured", "longer", "equations"}


def write_site(folder: Path) -> Path:
    """Write all pages and pictures into ``folder / "pages"``, and the configuration of Zensical beside it.

    Returns:
        The configuration's path.
    """
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    targets: set[Path] = set()
    for file in sorted(DOCS.rglob("*")):
        place = file.relative_to(DOCS)
        if file.suffix not in PUBLISHED or NOT_PUBLISHED & set(place.parts):
            continue
        if file.suffix == ".md":
            targets |= set(_sources(place.as_posix()))
            _write(pages / place, page_of_site(file.read_text(encoding="utf-8"), place.as_posix()))
        else:
            _copy(file, pages / place)
    for target in sorted(targets):
        _write(pages / _page_of(target), _source_page(target))
        for picture in _pictures(target):
            _copy(picture, pages / "source" / picture.relative_to(ROOT))
    config = (DOCS / "site.toml").read_text(encoding="utf-8")
    nav = navigation((DOCS / "README.md").read_text(encoding="utf-8"))
    _write(folder / "zensical.toml", config.replace("nav = []", f"nav = {_inline_toml(list(nav))}"))
    return folder / "zensical.toml"


def navigation(index: str) -> Iterator[dict[str, Any]]:
    """Home, and a section for each bold line of the index with the pages that its list links to."""
    yield {"Home": "README.md"}
    for title, body in re.findall(r"^\*\*(.+)\*\*$\n\n((?:[- ] .+\n)+)", index, re.MULTILINE):
        pages: list[Any] = [{label: page} for label, page in re.findall(r"^- \[(.+?)\]\(([\w/.-]+\.md)\)", body, re.M)]
        if any("ref-methods.md" in page.values() for page in pages):
            methods = sorted(path.name for path in (DOCS / "methods").glob("*.md"))
            pages.append({"Each method": [f"methods/{name}" for name in methods]})
        yield {title: pages}


def page_of_site(markdown: str, here: str) -> str:
    """Return a page with its links, equations and tables as the site needs them.

    Args:
        markdown: the page as it is in the repository.
        here: its path inside ``docs``.
    """

    def moved(link: re.Match[str]) -> str:
        target = _outside(here, link[2])
        return f"{link[1]}({_relative(_page_of(target), here)})" if target else link[0]

    if here.startswith("methods/"):
        markdown = with_mathml(markdown)
    lines = "\n".join(_table_row(line) for line in LINK.sub(moved, markdown).split("\n"))
    return TABLE.sub(lambda found: _align_numbers(found[0]), lines)


def _inline_toml(value: Any) -> str:
    """Write lists, tables and strings on one line; a table inside a list has no other form in TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_inline_toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_inline_toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


def _pictures(target: Path) -> Iterator[Path]:
    """The pictures that a Markdown file outside of the docs shows, which lie beside it."""
    if target.suffix == ".md":
        for link in PICTURE.findall(target.read_text(encoding="utf-8")):
            yield target.parent / link


def with_mathml(markdown: str) -> str:
    """Replace equations between dollar signs by MathML, which browsers show without a script or fonts."""
    markdown = markdown.replace(r"\arg\min", r"\mathrm{argmin}")  # the converter knows no \arg
    markdown = EQUATION.sub(lambda found: f'<div class="equation">{convert(found[1], display="block")}</div>', markdown)
    # Python-Markdown takes a line that begins with <math> for a block, which would tear the paragraph apart.
    return SYMBOL.sub(lambda found: f"<span>{convert(found[1])}</span>", markdown)


def _table_row(line: str) -> str:
    """GitHub wants bars escaped in the code of a table; Python-Markdown would show the backslash."""
    if not line.startswith("|"):
        return line
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)


def _align_numbers(table: str) -> str:
    """Align the columns of a table that hold numbers at the right, unless the page says how they are aligned."""
    head, rule, *rows = table.rstrip("\n").split("\n")
    cells = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    columns = [[cell.strip() for cell in column] for column in zip(*cells, strict=False)]
    marks = rule.strip("|").split("|")
    for i, column in enumerate(columns[: len(marks)]):
        if marks[i].strip() == "---" and any(column) and all(NUMBER.fullmatch(cell) for cell in column):
            marks[i] = " ---: "
    return "\n".join([head, f"|{'|'.join(marks)}|", *rows]) + "\n" * table.endswith("\n")


def _sources(src_uri: str) -> Iterator[Path]:
    file = DOCS / src_uri
    if file.is_file():
        for _, link, _ in LINK.findall(file.read_text(encoding="utf-8")):
            target = _outside(src_uri, link)
            if target:
                yield target


def _outside(src_uri: str, link: str) -> Path | None:
    """The file or folder that a link leads to, if it is not part of the site."""
    if "://" in link:
        return None
    target = (DOCS / src_uri).parent.joinpath(link).resolve()
    page = target.is_relative_to(DOCS) and target.suffix in (".md", ".svg", ".png", ".ipynb")
    return None if page or not target.exists() else target


def _page_of(target: Path) -> str:
    return f"source/{target.relative_to(ROOT).as_posix()}.md"


def _relative(to: str, here: str) -> str:
    return posixpath.relpath(to, posixpath.dirname(here))


def _source_page(target: Path) -> str:
    if target.suffix == ".md" and not LINK.search(text := target.read_text(encoding="utf-8")):
        return text  # it can be read as it is: no link of it would lead elsewhere
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        inside = (p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file() and "__" not in str(p))
        return head + "".join(f"- `{name}`\n" for name in sorted(inside))
    return head + f"````` {SHOWN.get(target.suffix, 'text')}\n{target.read_text(encoding='utf-8')}\n`````\n"


if __name__ == "__main__":
    write_site(Path(sys.argv[1]))
