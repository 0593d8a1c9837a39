"""What the site needs beyond the pages: a hook of MkDocs (see ``mkdocs.yml``).

Pages are written to be read in the repository, where a link may lead to a source file or a folder. On the site these
have pages of their own, under ``source``. The navigation follows from the list in ``docs/README.md``.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
LINK = re.compile(r"(?<!!)(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")
EQUATION = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.MULTILINE | re.DOTALL)
SYMBOL = re.compile(r"\$([^$\n]+)\$")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^):]+)\)")
SHOWN = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml", ".csv": "text", ".md": "markdown"}


def on_config(config: Any) -> Any:
    config.nav = list(navigation((DOCS / "README.md").read_text(encoding="utf-8")))
    return config


def navigation(index: str) -> Iterator[dict[str, Any]]:
    """Home, and a section for each bold line of the index with the pages that its list links to."""
    yield {"Home": "README.md"}
    for title, body in re.findall(r"^\*\*(.+)\*\*$\n\n((?:[- ] .+\n)+)", index, re.MULTILINE):
        pages: list[Any] = [{label: page} for label, page in re.findall(r"^- \[(.+?)\]\(([\w/.-]+\.md)\)", body, re.M)]
        if any("ref-methods.md" in page.values() for page in pages):
            methods = sorted(path.name for path in (DOCS / "methods").glob("*.md"))
            pages.append({"Each method": [f"methods/{name}" for name in methods]})
        yield {title: pages}


def on_files(files: Files, config: Any) -> Files:
    targets = {target for page in files.documentation_pages() for target in _sources(page.src_uri)}
    for target in sorted(targets):
        files.append(File.generated(config, _page_of(target), content=_source_page(target)))
        for picture in _pictures(target):
            place = f"source/{picture.relative_to(ROOT).as_posix()}"
            files.append(File.generated(config, place, abs_src_path=str(picture)))
    return files


def _pictures(target: Path) -> Iterator[Path]:
    """The pictures that a Markdown file outside of the docs shows, which lie beside it."""
    if target.suffix == ".md":
        for link in PICTURE.findall(target.read_text(encoding="utf-8")):
            yield target.parent / link


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def moved(link: re.Match[str]) -> str:
        target = _outside(here, link[2])
        return f"{link[1]}({_relative(_page_of(target), here)})" if target else link[0]

    if here.startswith("methods/"):
        markdown = with_mathml(markdown)
    return "\n".join(_table_row(line) for line in LINK.sub(moved, markdown).split("\n"))


def with_mathml(markdown: str) -> str:
    """Replace equations between dollar signs by MathML, which browsers show without a script or fonts."""
    markdown = markdown.replace(r"\arg\min", r"\mathrm{argmin}")  # the converter knows no \arg
    markdown = EQUATION.sub(lambda found: f'<div class="equation">{convert(found[1], display="block")}</div>', markdown)
    return SYMBOL.sub(lambda found: convert(found[1]), markdown)


def _table_row(line: str) -> str:
    """GitHub wants bars escaped in the code of a table; Python-Markdown would show the backslash."""
    if not line.startswith("|"):
        return line
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)


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
