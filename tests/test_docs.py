"""The pages tell the truth: links lead somewhere, code runs, commands exist, generated pages are up to date.

Blocks of a page run from top to bottom in one folder. A comment above a block says if it is otherwise:
``<!-- not run: reason -->``, or ``<!-- part of FILE -->`` for a piece of a file, which is run whole instead.
"""

import importlib.util
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click
import pytest

import atoll as package
from atoll import models, registry
from atoll.cli import main
from atoll.cli.options import given
from atoll.compare import configs
from atoll.config import Config
from atoll.data.partition import parse

ROOT = Path(__file__).parent.parent
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SMALL = {"rounds": 2, "epochs": 1}  # what runs in these pages are cut down to


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


# -- reading pages ----------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    language: str
    text: str
    note: str  # the comment above it
    line: int

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.startswith("atoll ")] if not self.language else []


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    for at, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = at
            continue
        note = re.fullmatch(r"<!-- (.+) -->", lines[start - 1])
        text = "\n".join(lines[start + 1 : at])
        yield Block(lines[start].strip("` "), text, note[1] if note else "", start + 1)
        start = None
    assert start is None, f"{page.name}: the block in line {(start or 0) + 1} has no end"


def prose(page: Path) -> str:
    """The page without its blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Headings as GitHub makes targets of them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def all_commands() -> list[tuple[str, str]]:
    return [(name, c) for name in names(PAGES) for block in blocks(ROOT / name) for c in block.commands]


# -- links and names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", names(PAGES))
def test_links_lead_to_something_in_the_repository(name: str) -> None:
    page = ROOT / name
    for link in LINK.findall(prose(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT.resolve()), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_has_every_page() -> None:
    linked = set(LINK.findall((DOCS / "README.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= linked


@pytest.mark.parametrize("name", names(PAGES))
def test_nothing_outside_the_product_is_mentioned(name: str) -> None:
    """No absolute paths, and no addresses but those that the code, the licence or a data set gives."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.findall(r"(?:^|[\s`'\"(=])/[a-z]\w*", text) == []
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    for host in re.findall(r"https?://([\w.-]+)", text):
        assert host in sources or host == "github.com"


@pytest.mark.parametrize("name", names(PAGES))
def test_what_is_quoted_exists(name: str) -> None:
    """Files of the repository, tests, options and names of the package, wherever they stand in back-quotes."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for quoted in re.findall(r"`([^`\n]+)`", prose(ROOT / name)):
        if re.fullmatch(r"(src|tests|docs|examples)/[\w/.]*", quoted):
            assert (ROOT / quoted).exists(), quoted
        elif re.fullmatch(r"test_\w+", quoted):
            assert f"def {quoted}(" in tests, quoted
        elif re.fullmatch(r"atoll\.[\w.]+", quoted):
            assert resolves(quoted), quoted
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", quoted):
            assert option in every_option(), option


def resolves(dotted: str) -> bool:
    try:
        return pkgutil.resolve_name(dotted) is not None
    except (ImportError, AttributeError):
        return False


def every_option(group: click.Group = main) -> set[str]:
    found = {"--help", "--version", "--only", "--quick"}  # the last two are those of `python -m benchmarks`
    context = click.Context(group)
    for command in (group.get_command(context, name) for name in group.list_commands(context)):
        assert command is not None
        found |= every_option(command) if isinstance(command, click.Group) else set()
        found |= {option for parameter in command.params for option in parameter.opts}
    return found


# -- code and commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "command"), all_commands())
def test_commands_can_be_read(name: str, command: str) -> None:
    """Options exist, values have the right form, settings belong to the methods; nothing is run."""
    context = parsed(command)
    values = dict(context.params)
    if context.command.name not in ("run", "compare") or values.get("config_file", "none of its options"):
        return
    methods = values.pop("names", None) or [values.pop("method", None) or "fedavg"]
    if tuple(methods) == ("all",):  # which of them fit is found out on the data, and these may not be here
        methods = tuple(registry.methods())
    shared = {key: value for key, value in values.items() if key in Config.__dataclass_fields__}
    for config in configs([str(ROOT / m) if m.endswith(".py") else m for m in methods], given(shared, None)):
        parse(config.partition)
        assert all(models.is_foreign(m) or m.partition(":")[0] in models.names() for m in config.models)


def parsed(command: str) -> click.Context:
    """The innermost command with its arguments."""
    words, group, context = shlex.split(command)[1:], main, click.Context(main, info_name="atoll")
    while words and isinstance(found := group.get_command(context, words[0]), click.Group) and words[1:]:
        group, words = found, words[1:]
    assert found is not None, command
    return found.make_context(words[0], words[1:], parent=context)


@pytest.fixture
def page_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Where the code of a page runs: a folder with the examples in it, and small settings."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "data"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run = package.run

    def small(method: Any = "fedavg", *args: Any, **options: Any) -> Any:
        cut = SMALL if isinstance(method, str) else {"rounds": SMALL["rounds"]}
        return run(method, *args, **options | cut)

    monkeypatch.setattr(package, "run", small)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module


@pytest.mark.parametrize("name", names(PAGES))
def test_blocks_run(
    name: str, page_module: ModuleType, atoll: Callable[..., Any], without_report: None, capsys: Any
) -> None:
    done = set[str]()
    for block in blocks(ROOT / name):
        if block.note.startswith("part of "):
            path = ROOT / block.note.removeprefix("part of ")
            assert squeezed(block.text) in squeezed(path.read_text(encoding="utf-8")), f"line {block.line}"
            if str(path) not in done:
                run_python(path.read_text(encoding="utf-8"), page_module, str(path))
                done.add(str(path))
        elif block.note:
            assert re.fullmatch(r"not run: .{8,}", block.note), f"line {block.line}: {block.note}"
        elif block.language == "python":
            run_python("\n" * block.line + block.text, page_module, name)
        elif name != "README.md":
            for command in block.commands:
                atoll(*cut_down(command))


def run_python(text: str, module: ModuleType, where: str) -> None:
    exec(compile(text, where, "exec"), vars(module))


def squeezed(text: str) -> str:
    """Without indentation and empty lines: a piece of a class stands alone on a page."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def cut_down(command: str) -> list[str]:
    """The words of a command; runs are short, and all in this process."""
    words = shlex.split(command)[1:]
    if words[0] not in ("run", "compare"):
        return words
    rounds = max(1, int(words[words.index("--rounds") + 1]) // 5) if "--rounds" in words else SMALL["rounds"]
    small = {**SMALL, "rounds": rounds, "workers": 1}
    return [*words, *(word for option, value in small.items() for word in (f"--{option}", str(value)))]


# -- generated pages --------------------------------------------------------------------------------------------------


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_what_the_code_says() -> None:
    for file, text in builder().pages().items():
        assert (DOCS / file).read_text(encoding="utf-8") == text, f"docs/{file} is old: run python docs/build.py"


def test_the_readme_lists_every_method_in_its_family() -> None:
    section = README.read_text(encoding="utf-8").partition("## Methods")[2].partition("##")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    listed = {
        name: family.strip().replace(" and ", "/") for family, names in rows for name in re.findall(r"`(\w+)`", names)
    }
    variants = {variant for cls in registry.methods().values() for variant in cls.variants}
    assert {n: f for n, f in listed.items() if n not in variants} == {
        n: c.family for n, c in registry.methods().items()
    }


def test_the_page_of_bytes_has_every_method_and_the_rows_tried_here() -> None:
    """All rows would take too long; they come out of the same two lines of code."""
    made = builder()
    page = (DOCS / "ref-communication.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w:-]+)` \|", page, re.MULTILINE) == made.SPECS
    for spec in ("fedavg", "lgfedavg", "fedproto", "pfedes"):
        row = f"| {' | '.join(made.traffic_row(spec))} |"
        assert row in page, f"docs/ref-communication.md is old: run python docs/build.py. It should have: {row}"
