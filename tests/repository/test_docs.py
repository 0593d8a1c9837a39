"""The pages tell the truth: links lead somewhere, code runs, commands exist, generated pages are up to date.

They can be read in two ways, as files of the repository and as the site that ``make docs`` builds.

Blocks of a page run from top to bottom in one folder. A comment above a block says if it is otherwise:
``<!-- not run: reason -->``, or ``<!-- part of FILE -->`` for a piece of a file, which is run whole instead.
"""

import importlib.util
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import unquote

import click
import pytest
from support.browser import started_chromium
from support.paths import ROOT

import atoll as package
from atoll import aggregation, core, models
from atoll.cli import main, signatures
from atoll.cli.options import given
from atoll.config import Config
from atoll.core.method import traits_of
from atoll.core.traits import Need
from atoll.data.partition.specs import parse, resolve
from atoll.experiments.planning import plan_configs
from atoll.methods import _registry

README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("*.md")), *sorted((DOCS / "methods").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")  # pictures as well
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
def test_links_of_a_page_have_targets_in_the_repository(name: str) -> None:
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
    listed = set(LINK.findall((DOCS / "ref-methods.md").read_text()))
    assert {f"methods/{page.name}" for page in (DOCS / "methods").glob("*.md")} <= listed


@cache
def all_text(folder: str, pattern: str) -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob(pattern))


@pytest.mark.parametrize("name", names(PAGES))
def test_pages_have_neither_absolute_paths_nor_unknown_hosts(name: str) -> None:
    """No absolute paths, and no addresses but those that the code, the licence or a data set gives."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"(?:^|[\s`'\"(=])(/[a-z]\w*)", text)
    assert [path for path in found if path != "/health"] == []  # the path of probes, of an address and not of a disk
    sources = all_text("src", "*.py")
    for host in re.findall(r"https?://([\w.-]+)", text):
        assert host in sources or host == "github.com"


@pytest.mark.parametrize("name", names(PAGES))
def test_quoted_files_tests_options_and_names_exist(name: str) -> None:
    """Files of the repository, tests, options and names of the package, wherever they stand in back-quotes."""
    tests = all_text("tests", "test_*.py")
    for quoted in re.findall(r"`([^`\n]+)`", prose(ROOT / name)):
        if re.fullmatch(r"(src|tests|docs|examples)/[\w/.]*", quoted):
            assert (ROOT / quoted).exists(), quoted
        elif re.fullmatch(r"test_\w+", quoted) and quoted not in Config.__dataclass_fields__:
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
def test_commands_of_a_page_parse(name: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options exist, values have the right form, settings belong to the methods; nothing is run."""
    monkeypatch.setattr(signatures, "check_data_name", lambda *words: None)  # the page's files are not here
    context = parsed(command)
    values = dict(context.params)
    if context.command.name not in ("run", "compare") or values.get("config_file", "none of its options"):
        return
    methods = values.pop("names", None) or [values.pop("method", None) or "fedavg"]
    if tuple(methods) == ("all",):  # which of them fit is found out on the data, and these may not be here
        methods = tuple(_registry.methods())
    shared = {key: value for key, value in values.items() if key in Config.__dataclass_fields__}
    for config in plan_configs([str(ROOT / m) if m.endswith(".py") else m for m in methods], given(shared, None)):
        parse(resolve(config.partition, has_owners=False))
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
    (tmp_path / "shared_head.py").symlink_to(ROOT / "examples" / "new_method.py")  # that a tutorial builds
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shared_head", raising=False)
    run = package.run

    def small(method: Any = "fedavg", *args: Any, **options: Any) -> Any:
        cut = SMALL if isinstance(method, str) else {"rounds": SMALL["rounds"]}
        return run(method, *args, **options | cut)

    monkeypatch.setattr(package, "run", small)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a reader of the tutorial has put the blocks of the steps 1 to 5 into a file."""
    page = (DOCS / "tutorial-write-a-method.md").read_text(encoding="utf-8")
    steps = page.partition("## 1.")[2].partition("## 6.")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", steps, re.M | re.S)
    (tmp_path / "shared_head.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shared_head", raising=False)
    return tmp_path / "shared_head.py"


@pytest.mark.promise(
    "Documentation", "The blocks of the tutorial on methods, one below the other, are a method that runs."
)
def test_tutorial_on_methods_works_step_by_step(reader: Path, atoll: Callable[..., Any], without_report: None) -> None:
    atoll("run", reader, "--rounds", "1", "--rows", "200", "--clients", "2", "--epochs", "1")

    page = (DOCS / "tutorial-write-a-method.md").read_text(encoding="utf-8")
    later = re.findall(r"^```python\n(.*?)^```", page.partition("## 6.")[2], re.M | re.S)
    assert len(later) == 3
    for block in later:  # each has its own imports
        small = re.sub(r"rounds=\d", "rounds=1, rows=200, clients=2", block)
        module = ModuleType("block")
        sys.modules["block"] = module
        exec(compile(small, "tutorial", "exec"), vars(module))


@pytest.mark.parametrize("name", names(PAGES))
def test_code_and_commands_of_a_page_run(
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
    if words[0] not in ("run", "compare", "sweep"):
        return words
    rounds = max(1, int(words[words.index("--rounds") + 1]) // 5) if "--rounds" in words else SMALL["rounds"]
    small = {**SMALL, "rounds": rounds, "workers": 1}
    return [*words, *(word for option, value in small.items() for word in (f"--{option}", str(value)))]


# -- generated pages --------------------------------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    """A script of the docs as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_what_the_code_says() -> None:
    made = script("build").pages()
    for file, text in made.items():
        assert (DOCS / file).read_text(encoding="utf-8") == text, f"docs/{file} is old: run make pages"
    pages = {f"methods/{page.name}" for page in (DOCS / "methods").iterdir()}
    assert pages <= set(made), "a page of a method that is no more"


def test_the_page_of_the_python_interface_has_every_exported_name() -> None:
    page = (DOCS / "ref-api.md").read_text(encoding="utf-8")
    listed = {title.rpartition(".")[2] for title in re.findall(r"^### `(atoll[\w.]+)`$", page, re.MULTILINE)}
    exported = {*package.__all__, *core.__all__, *aggregation.__all__}
    assert exported - listed == {"__version__"}


def test_text_of_pictures_stays_inside_their_width() -> None:
    for file, svg in script("build").pictures().items():
        width = int(re.search(r'viewBox="0 0 (\d+)', svg)[1])  # type: ignore[index]
        for x, more, text in re.findall(r'<text x="([\d.]+)" y="[\d.]+" fill="#\w+"(.*?)>(.*?)</text>', svg):
            half = 0.5 if "middle" in more else 1
            assert float(x) + half * 6.9 * len(text) < width, f"{file}: {text}"


def test_the_readme_lists_every_method_in_its_family() -> None:
    section = README.read_text(encoding="utf-8").partition("## Methods")[2].partition("##")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    listed = {
        name: family.strip().replace(" and ", "/") for family, names in rows for name in re.findall(r"`(\w+)`", names)
    }
    variants = {variant for cls in _registry.methods().values() for variant in cls.traits.variants}
    assert {n: f for n, f in listed.items() if n not in variants - _registry.methods().keys()} == {
        n: traits_of(c).family for n, c in _registry.methods().items()
    }


def test_numbers_of_methods_in_the_texts_are_those_of_the_registry() -> None:
    kinds = [cls for cls in _registry.methods().values() if cls.__module__.startswith("atoll.")]
    unlike = [cls for cls in kinds if Need.SAME_ARCHITECTURE not in traits_of(cls).needs]
    told = {
        README: [
            rf"compare {len(kinds)} methods",
            rf"\| methods \| {len(kinds)} \|",
            rf"\| {len(unlike)} of the methods \|",
        ],
        README.parent / "CHANGELOG.md": [rf"\*\*Methods\*\*: {len(kinds)},"],
    }
    for page, sentences in told.items():
        for sentence in sentences:
            assert re.search(sentence, page.read_text(encoding="utf-8")), f"{page.name}: {sentence}"


def test_communication_page_has_every_method_and_current_sample_rows() -> None:
    """All rows would take too long; they come out of the same two lines of code."""
    made = script("build")
    page = (DOCS / "ref-communication.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w:-]+)` \|", page, re.MULTILINE) == made.SPECS
    for spec in ("fedproto", "pfedes"):
        row = f"| {' | '.join(made.traffic_row(spec))} |"
        assert row in page, f"docs/ref-communication.md is old: run make pages. It should have: {row}"


# -- the site ---------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """What a built page refers to: links of the reader's choosing, and what a browser fetches by itself."""

    def __init__(self, page: Path):
        super().__init__()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.targets: set[str] = set()
        self.marks: set[str] = set()  # classes and components, by which the theme's script decides what to do
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.targets |= {given[name] for name in ("id", "name") if name in given}
        self.marks |= {*given.get("class", "").split(), given.get("data-md-component", "")}
        self.links |= {given["href"]} if tag == "a" and "href" in given else set()
        self.fetched |= {given["href"]} if tag == "link" and "href" in given else set()
        self.fetched |= {given[name] for name in ("src", "srcset", "poster", "data") if name in given}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Reader]:
    """The pages of the site; it is not built at all if Zensical has something to warn of.

    Code has no colours here: they take much of the time to build, and no test looks at them.
    """
    config = script("site").write_site(tmp_path_factory.mktemp("site"))
    plain = "[project.markdown_extensions.pymdownx.highlight]\nuse_pygments = false"
    config.write_text(config.read_text(encoding="utf-8").replace(plain.partition("\n")[0], plain), encoding="utf-8")
    words = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    return {page: Reader(page) for page in (config.parent / "site").rglob("*.html")}


def test_the_site_aligns_columns_of_numbers_at_the_right_and_words_at_the_left() -> None:
    rows = "| `a` | 96.4 ± 1.7 | 12 kB | -0.1 to +2.5 | 5.1e-05 | 3 of 4 |\n| `b` | – | 0 | – | 0.06 | x |\n"
    page = f"| method | by val | bytes | interval | p | note |\n|{' --- |' * 6}\n{rows}"

    shown = script("site").page_of_site(page, "results.md")

    assert shown.split("\n")[1].split("|")[1:-1] == [" --- ", *[" ---: "] * 4, " --- "]


def test_the_site_has_every_page(site: dict[Path, Reader]) -> None:
    names = {page.name for page in site}
    assert {page.with_suffix(".html").name for page in PAGES if page.name != "README.md"} <= names
    assert "index.html" in names


@pytest.mark.promise("Documentation", "Every method has a page with its equations as mathematics.")
def test_pages_of_methods_have_equations_as_mathml(site: dict[Path, Reader]) -> None:
    pages = {page.stem: page for page in site if page.parent.name == "methods" and "source" not in page.parts}
    assert set(pages) == set(_registry.methods())
    for name, page in pages.items():
        text = page.read_text(encoding="utf-8")
        lines = (DOCS / "equations" / f"{name}.tex").read_text(encoding="utf-8").splitlines()
        assert all(re.match(r"(client|server): \S", line) for line in lines), name
        assert text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == len(lines), name
        assert "$$" not in text, name
        assert not re.search(r'^\s*<math [^>]*display="inline"', text, re.MULTILINE), (
            f"{name}: a symbol tears a paragraph"
        )
        assert not re.search(r"<m[ion][^>]*>[^<]*\\[a-z]", text), f"{name}: a command that the converter does not know"


def test_links_of_the_site_have_targets(site: dict[Path, Reader]) -> None:
    """Pages, sources and anchors; the page for addresses that do not exist has absolute links to a host of its own."""
    for page, found in site.items():
        for link in found.links if page.name != "404.html" else ():
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in site[target].targets, f"{page.name}: {link}"


def test_site_loads_nothing_from_other_hosts(site: dict[Path, Reader]) -> None:
    """Nor does it have what would make the theme's script ask one: diagrams, and a repository whose stars it counts."""
    for page, found in site.items():
        assert [address for address in found.fetched if re.match(r"(https?:)?//", address)] == [], page.name
        assert not found.marks & {"mermaid", "source"}, page.name
    for sheet in next(page for page in site if page.name == "404.html").parent.rglob("*.css"):
        assert not re.search(r"(url\(|@import\s*)[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("install", "install.html"),
        ("callback", "how-to-notebooks.html"),
        ("missing values", "how-to-own-data.html"),
        ("early stopping", "how-to-schedules.html"),
    ],
)
def test_search_finds_a_heading_for_common_questions(words: str, page: str, site: dict[Path, Reader]) -> None:
    """The index of the search holds headings with their pages; a heading ranks above text."""
    folder = next(found for found in site if found.name == "404.html").parent
    entries = json.loads((folder / "search.json").read_text(encoding="utf-8"))["items"]
    assert page in {entry["location"].partition("#")[0] for entry in entries if words in entry["title"].lower()}


@pytest.mark.browser
def test_search_works_when_the_site_is_opened_from_a_disk(site: dict[Path, Reader]) -> None:
    home = next(page for page in site if page.name == "404.html").parent / "index.html"
    with started_chromium() as browser:
        page = browser.new_page()
        page.goto(home.as_uri())
        page.locator("button.md-search__button").click()
        page.get_by_placeholder("Search").last.press_sequentially("missing values")
        page.get_by_role("heading", name="Missing values").first.wait_for()
