"""Make pages from the code and from what was measured: ``python docs/build.py`` writes them.

They are ``ref-*.md`` but for that of the run directory, ``explanation-promises.md``, ``methods/*.md``, ``results.md``,
``config.schema.json`` and the pictures of methods.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from statistics import median
from typing import Any, get_type_hints

import click
import yaml
from torch import Tensor

from atoll import cli, models
from atoll.analysis.communication import ReferenceFederation
from atoll.cli import main as command_line
from atoll.cli.deploy import load_run as load_deploy_run
from atoll.cli.signatures import RECIPES, describe_all
from atoll.config import NEUTRAL, Config, flag
from atoll.core.contract import contract
from atoll.core.hooks import AdaptsNewClients, ClosedToNewClients, HasGenericModel
from atoll.core.method import traits_of
from atoll.core.payloads import Nothing, Params
from atoll.core.traits import Need
from atoll.data.catalogue import KNOWN
from atoll.data.loading import catalogue
from atoll.data.natural_sets import NATURAL
from atoll.errors import AtollError
from atoll.experiments.claim_page import ClaimReport
from atoll.experiments.claim_verdicts import comparison_sheet
from atoll.experiments.claims import list_claims, read_claim
from atoll.experiments.config_schema import schema
from atoll.experiments.papers import list_recipes
from atoll.methods import _registry
from atoll.methods._factory import OPTIMISERS, Setting, make, settings_of
from atoll.report.table import NONE, format_score, quantity
from atoll.utils.files import to_json
from atoll.utils.stats import Stat

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))  # for the files beside this one, wherever it is started
from api_page import api_page  # noqa: E402
from pictures.draw import pictures  # noqa: E402
from promises_page import promises_page  # noqa: E402

NOTE = "<!-- Made from the code by docs/build.py: change the code and run it again, not this page. -->"
SYMBOLS = (
    r"$\mathcal{L}_k$ is the mean loss of client $k$ on its $n_k$ training samples, with the regularisers of the run "
    r"if the method takes them; $S_t$ are the clients of round $t$, $N$ is the number of all clients. *From* names "
    r"where training starts; $\arg\min$ stands for some epochs of the local optimiser. Numbers at the right are those "
    r"of the paper."
)
NEW_CLIENTS = "how-to-new-clients.md"
OTHER_TASKS = "how-to-other-tasks.md"
README = "../README.md"
CODE_MAP = "explanation-code-map.md"
DEPLOY = "how-to-deploy.md"
SECURITY = "explanation-security.md"
SOURCE = FOLDER.parent / "src" / "atoll"
PACKAGES = (  # from bottom to top, as tests/unit/test_import_layers.py has them
    "utils", "core", "aggregation", "data", "models", "methods", "clients", "backends", "simulation", "privacy",
    "config", "storage", "engine", "inference", "analysis", "report", "experiments", "deploy", "dashboard", "cli",
)  # fmt: skip
PLACES = {"down": "Down, to a client", "up": "Up, to the server", "state": "Kept by a client", "server": "Server"}


def pages() -> dict[str, str]:
    """Generated pages by their file names; all but that of bytes, which takes minutes."""
    made = {
        "ref-api.md": api_page(NOTE),
        "explanation-promises.md": promises_page(NOTE),
        "ref-cli.md": commands_page(),
        "ref-options.md": options_page(),
        "config.schema.json": to_json(schema(), indent=1) + "\n",
        "../src/atoll/cli/signatures.json": signatures(),
        "ref-methods.md": methods_page(),
        "results.md": results_page(),
        README: with_generated_part(README, readme_verdicts()),
        NEW_CLIENTS: with_generated_part(NEW_CLIENTS, new_clients_table()),
        OTHER_TASKS: with_generated_part(OTHER_TASKS, tasks_table()),
        CODE_MAP: with_generated_part(CODE_MAP, modules_list()),
        SECURITY: with_generated_part(SECURITY, boundaries_table()),
        DEPLOY: with_generated_part(DEPLOY, sites_table()),
    }
    return made | {f"methods/{name}.md": method_page(name) for name in _registry.methods()} | pictures()


def signatures() -> str:
    """Return the options and help texts of the commands that are imported late."""
    commands = {name: cli.load(name) for name in cli.COMMANDS if name not in cli.IMPORTED_AT_ONCE}
    commands |= {"deploy run": load_deploy_run()}
    names = {"data": sorted({*KNOWN, *NATURAL}), "models": models.names(), RECIPES: list_recipes()}
    return to_json(describe_all(commands, names), indent=1) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(value: object) -> str:
    return f"`{value}`"


def shown(value: object) -> str:
    """A default as a reader would type it; nothing if there is none."""
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(f"{value:g}" if isinstance(value, float) else value)


def joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


# -- pages of which a part is generated -------------------------------------------------------------------------------

BEGIN, END = "<!-- made from the code by build.py -->", "<!-- until here -->"


def with_generated_part(page: str, part: str) -> str:
    """Return a page with its generated part replaced."""
    before, _, rest = (FOLDER / page).read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{rest.partition(END)[2]}"


def modules_list() -> str:
    """Return every module with the first line of its docstring, package by package, from bottom to top."""
    root = [path for path in sorted(SOURCE.glob("*.py")) if path.name != "__init__.py"]
    blocks = ["**At the root**\n\n" + "\n".join(_module_line(path) for path in root)]
    for package in PACKAGES:
        folder = SOURCE / package
        inside = sorted(path for path in folder.rglob("*.py") if path.name != "__init__.py")
        head = f"**`{package}/`** {_summary(folder / '__init__.py')}"
        blocks.append(head + "\n\n" + "\n".join(_module_line(path) for path in inside))
    return "\n\n".join(blocks)


def _module_line(path: Path) -> str:
    name = path.relative_to(SOURCE).as_posix()
    return f"- [`{name}`](../src/atoll/{name}): {_summary(path)}"


def _summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def boundaries_table() -> str:
    """Return the attacks of the last complete run of `make test-redteam`, with what each got."""
    found = json.loads((FOLDER / "measured" / "boundaries.json").read_text())
    rows = ([entry[name] for name in ("who", "what", "allowed", "got")] + [code(entry["test"])] for entry in found)
    return table(("who", "what", "allowed", "got", "test"), rows)


def sites_table() -> str:
    """Return what ``python -m benchmarks.sites`` measured: rounds between sites, and idle processes."""
    found = json.loads((FOLDER / "measured" / "sites.json").read_text())
    dates = sorted({entry["date"] for entry in found["rounds"] + found["idle"]})
    load = max(entry["load"] for entry in found["rounds"])
    where = f"{found['processor']}, {found['cores']} cores; load average of the minute before: at most {load}"
    rounds = (_sites_row(entry) for entry in found["rounds"])
    idle = [
        [str(e["sites"]), f"{e['server_percent']:.2f} %", f"{e['site_percent']:.2f} %", f"{e['connection_mb']:.0f} MB"]
        for e in found["idle"]
    ]
    return "\n\n".join([
        f"Measured on {' and '.join(dates)} with Atoll {found['atoll']}: {where}.",
        table(("sites", "payload", "seconds of a round", "pull", "worker", "push", "server and waiting"), rounds),
        table(("idle sites", "server, of a core", "a site, of a core", "memory of a connection"), idle),
    ])  # fmt: skip


def _sites_row(entry: dict[str, Any]) -> list[str]:
    head = [str(entry["sites"]), f"{entry['payload_mb']:g} MB"]
    if "left_out" in entry:
        return [*head, f"left out: {entry['left_out']}", "", "", "", ""]
    total = median(entry["seconds"])
    return [*head, f"{total:.2f}", *(f"{100 * seconds / total:.0f} %" for seconds in entry["steps"].values())]


# -- new clients -------------------------------------------------------------------------------------------------------


def new_clients_table() -> str:
    """What a client that comes after the run receives from each method, by the fields of its message."""
    head = ("method", "what a new client receives", "what it does", "server model")
    return table(head, (_new_client_row(name, cls()) for name, cls in _registry.methods().items()))


def _new_client_row(name: str, method: Any) -> list[str]:
    if isinstance(method, ClosedToNewClients) and (reason := method.why_closed()):
        return [code(name), f"nothing: {reason}", "refused", ""]
    downloads = [messages.download for messages in contract(method).exchanges]
    parts = [f"{code(f.name)}: {f.metadata['about']}" for download in downloads for f in fields(download)]
    own = "a client's part of a round" if parts else "trains alone"
    if isinstance(method, AdaptsNewClients):
        own = "its own rule: " + (inspect.getdoc(method.adapt) or "").partition(": ")[2].rstrip(".")
    has = "yes" if isinstance(method, HasGenericModel) else ""
    return [code(name), "; ".join(parts) or "nothing", own, has]


# -- tasks ------------------------------------------------------------------------------------------------------------


def tasks_table() -> str:
    """Which methods run on which labels and data, by what they declare to need."""
    refused = {  # The model of the next token has a tied head, and its features are those of positions.
        "`multilabel`, `regression`": {Need.CLASSES},
        "`next-token`": {Need.CLASSES, Need.ROW_FEATURES, Need.SEPARATE_HEAD, Need.BATCH_NORM, Need.PROXY},
        "tables": {Need.PROXY},
        "tables with `--columns own`": {Need.SAME_ARCHITECTURE, Need.PUBLIC_DATA, Need.PROXY},
    }
    rows = (
        [code(name), *("no" if needs & traits_of(cls).needs else "yes" for needs in refused.values())]
        for name, cls in _registry.methods().items()
    )
    return table(("method", *refused), rows)


# -- options ----------------------------------------------------------------------------------------------------------


def options_page() -> str:
    return joined(
        [
            "# Options",
            NOTE,
            "## A run",
            "`atoll run`, `atoll compare` and `atoll audit` take these options ([all commands](ref-cli.md)). A "
            "configuration file (`--config`) and "
            "`atoll.run(...)` in Python take the same under the name in the second column. An option on the command "
            "line overrules the file. Entries with a tick may be changed when a run is resumed: they decide where, how "
            "long or how conveniently it runs, but not what comes out of a round.",
            table(("option", "entry", "takes", "default", "resume", "meaning"), _config_rows()),
            "In a file, `models` and `terms` are lists and `settings` is a mapping from names to values:",
            "```yaml\nmethod: dcpfl\npartition: pathological:3\nmodels: [mlp, 'mlp:hidden=32']\nwidth: 24\n"
            "settings: {lam: 0.2, optim.momentum: 0.5}\n```",
            "Editors complete and check such files with the JSON Schema in [config.schema.json](config.schema.json), "
            "which `atoll schema` prints. For the YAML extension of VS Code, write it to a file, "
            "`atoll schema > atoll.schema.json`, and begin the configuration with this line:",
            "```yaml\n# yaml-language-server: $schema=atoll.schema.json\n```",
            "## Optimisers",
            "A method that trains locally has a field `optim`; `--optimiser`, `--lr`, `--epochs`, `--steps` and "
            "`--batch-size` set its parts, and `--set optim.momentum=0.5` sets any of them. Other optimisers of a "
            "method (see its settings) are reached by their own name, such as `--set calibrate.epochs=2`.",
            "Epochs need not be whole: `--epochs 0.5` is half of the batches of one pass, rounded up, of each client "
            "by its own number of samples. `--steps 20` is 20 batches of every client: one with few samples goes "
            "through them again, one with many does not see all. What an optimiser remembers (momentum, moments) dies "
            "with the call that made it, unless a method hands it on: `optim.train` returns it beside the params and "
            "the number of steps taken, and takes it back as `memory`.",
            *(part for name in OPTIMISERS for part in _optimiser(name)),
            "## Models",
            "Names for `--models`. Options follow the name and are joined by `&`: `cnn1:native28=true`. The sizes are "
            "those for images of 3x32x32 (texts of 200 words) and ten classes; `adapter=pool` may be added to any of "
            "them and takes effect with `--width`.",
            table(("name", "data", "weights", "features", "options", "about"), _model_rows()),
            "## Data sets",
            "Names for `--data`. Other forms are in [Use your own data](how-to-own-data.md).",
            table(("name", "kind", "samples: train, test", "classes", "shape", "download", "licence"), _data_rows()),
        ]
    )


def commands_page() -> str:
    return joined(
        [
            "# Command line",
            NOTE,
            "Every command explains itself with `--help`, and every listing takes `--json`. A mistake gets one "
            "sentence that says what is wrong and what to do, and exit code 2.",
            *(part for name, command in _commands() for part in _command(name, command)),
        ]
    )


def _config_rows() -> Iterator[list[str]]:
    hints = get_type_hints(Config)
    for f in fields(Config):
        option = "`METHOD`" if f.name == "method" else code(flag(f.name))
        default = f.default if f.default is not MISSING else None
        tick = "✓" if f.name in NEUTRAL else ""
        yield [option, code(f.name), _kind(f, hints[f.name]), shown(default), tick, f.metadata["about"]]


def _kind(f: Any, kind: Any) -> str:
    if "choices" in f.metadata:
        return " or ".join(map(code, f.metadata["choices"]))
    names = {int: "whole number", float: "number", str: "text", bool: "switch", tuple[str, ...]: "list"}
    known = {kind: name for plain, name in names.items() for kind in (plain, plain | None)}
    return known.get(kind, "name=value")


def _commands(group: click.Group = command_line, prefix: str = "atoll") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _command(name: str, command: click.Command) -> Iterator[str]:
    with command.make_context(name, [], resilient_parsing=True) as context:
        usage = " ".join(command.collect_usage_pieces(context))
    yield f"## `{name}`"
    yield f"`{name} {usage}`"
    yield from _help(command)
    own = [p for p in command.params if isinstance(p, click.Option)]
    if any(p.name == "config_file" for p in own):
        taken = {p.name for p in own}
        without = [flag(f.name) for f in fields(Config) if f.name not in taken | {"method"}]
        yield (
            "All options of [a run](ref-options.md#a-run)"
            + (f" except {', '.join(map(code, without))}" if without else "")
            + "; and:"
        )
        own = [p for p in own if p.name not in {f.name for f in fields(Config)}]
    yield table(("option", "default", "meaning"), map(_option_row, own))


def _option_row(p: click.Option) -> list[str]:
    """Some help texts tell their default; here it has a column of its own."""
    text, _, told = " ".join((p.help or "").split()).partition("[default: ")
    plain = isinstance(p.default, str | int | float | Path) and not isinstance(p.default, bool)
    default = told.rstrip("]") or (p.default if plain else None)
    return [", ".join(map(code, p.opts)), shown(default), text.strip() or "–"]


def _help(command: click.Command) -> Iterator[str]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```\n{paragraph[2:]}\n```"
        else:
            yield " ".join(paragraph.split())


def _optimiser(name: str) -> Iterator[str]:
    yield f"### `{name}`"
    yield inspect.cleandoc(OPTIMISERS[name].__doc__ or "")
    yield _settings_table(settings_of(OPTIMISERS[name]()))


def _model_rows() -> Iterator[list[str]]:
    for row in models.catalogue():
        options = ", ".join(f"`{name}={_typed(value)}`" for name, value in models.options(row.name).items())
        kinds = ", ".join(models.kinds(row.name))
        yield [code(row.name), kinds, f"{row.parameters:,}", f"{row.features:,}", options, row.about]


def _typed(value: Any) -> str:
    """An option's default as one writes it after a model's name."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _data_rows() -> Iterator[list[str]]:
    for entry in catalogue():
        size = 0 if entry.name in NATURAL else sum(file.size for file in KNOWN[entry.name].files)
        rows, shape = ", ".join(f"{n:,}" for n in entry.rows), " x ".join(map(str, entry.shape))
        download = f"{size / 1e6:,.0f} MB" if size else "none"
        yield [code(entry.name), entry.kind, rows, f"{entry.classes:,}", shape, download, entry.licence]


# -- methods ----------------------------------------------------------------------------------------------------------


def methods_page() -> str:
    return joined(
        [
            "# Methods",
            NOTE,
            "`atoll methods` prints this list, and `atoll methods METHOD` what the page of a method says. "
            "*Heterogeneous models* says whether clients may have different architectures, *server model* whether the "
            "server has a model of its own that can be measured. How the families differ: [Families of "
            "methods](explanation-methods.md).",
            table(
                ("method", "source", "family", "heterogeneous models", "server model", "needs", "variants"),
                _method_rows(),
            ),
            "## Regularisers",
            "Terms for the local loss, added with `--with dw:mu=0.1` or, in a comparison, `fedavg+dw:mu=0.1`. Methods "
            f"that take them: {', '.join(code(name) for name in _registry.methods() if _takes_terms(name))}.",
            *(part for name in _registry.regularisers() for part in _regulariser(name)),
        ]
    )


def _method_rows() -> Iterator[list[str]]:
    for name, cls in _registry.methods().items():
        card = _registry.method_info(cls)
        variants = ", ".join(code(f"{name}:{variant}") for variant in traits_of(cls).variants)
        source = card.citation if card.url else ""
        yield [
            f"[`{name}`](methods/{name}.md)",
            source,
            traits_of(cls).family,
            _mixed(name),
            _generic(name),
            _needs(name),
            variants,
        ]


def _mixed(name: str) -> str:
    return "no" if Need.SAME_ARCHITECTURE in traits_of(_registry.method(name)).needs else "yes"


def _generic(name: str) -> str:
    return "yes" if issubclass(_registry.method(name), HasGenericModel) else "no"


def _needs(name: str) -> str:
    return ", ".join(sorted(need.name for need in traits_of(_registry.method(name)).needs - {Need.SAME_ARCHITECTURE}))


def method_page(name: str) -> str:
    """One method; links are those of a page in ``docs/methods``."""
    cls = _registry.method(name)
    card = _registry.method_info(cls)
    source = f" [{card.url}]({card.url})" if card.url else ""
    return joined(
        [
            f"# {name}: {card.title}",
            NOTE,
            f"{card.citation}.{source}",
            table(("family", "heterogeneous models", "server model", "needs", "takes regularisers"), [_facts(name)]),
            *_longer(name),
            "## Algorithm",
            *_equations(name),
            "The same in the words of the code:",
            *(
                f"```\n{paragraph}\n```" if paragraph.startswith("client:") else paragraph
                for paragraph in card.algorithm.split("\n\n")
            ),
            *_variants(name),
            f"The code: [{name}.py](../../src/atoll/methods/{name}.py). Its equations against numbers worked out by "
            f"hand: [test_{name}.py](../../tests/methods/test_{name}.py).",
            "## What travels",
            table(("where", "field", "holds", "how it travels", "meaning"), _payload_rows(name)),
            *_travelling(name),
            "## Settings",
            "Changed with `--set name=value`. Of an optimiser, only those settings are listed that differ from its "
            "[own defaults](../ref-options.md#optimisers).",
            _settings_table(_telling(name)),
            *_measured(name),
        ]
    )


def _equations(name: str) -> Iterator[str]:
    """Return the equations of docs/equations, first those of a client, then those of the server."""
    lines = (FOLDER / "equations" / f"{name}.tex").read_text(encoding="utf-8").splitlines()
    for side, title in (("client", "Client $k$:"), ("server", "Server:")):
        own = [line.removeprefix(f"{side}: ") for line in lines if line.startswith(f"{side}: ")]
        if own:
            yield title
            yield from (f"$$\n{equation}\n$$" for equation in own)
    yield SYMBOLS


def _facts(name: str) -> list[str]:
    family = f"[{traits_of(_registry.method(name)).family}](../explanation-methods.md#{_family(name)})"
    return [family, _mixed(name), _generic(name), _needs(name) or "nothing", "yes" if _takes_terms(name) else "no"]


def _family(name: str) -> str:
    """Its heading in the explanation of families, as an anchor."""
    headings = {"logits/features": "logits-and-features", "none": "no-exchange"}
    family = traits_of(_registry.method(name)).family
    return headings.get(family, family.replace(" ", "-"))


def _longer(name: str) -> Iterator[str]:
    """What somebody wrote about it, where somebody did."""
    file = FOLDER / "longer" / f"{name}.md"
    if file.exists():
        yield file.read_text(encoding="utf-8").strip()


def _variants(name: str) -> Iterator[str]:
    for variant, changes in traits_of(_registry.method(name)).variants.items():
        settings = ", ".join(code(f"{field}={value}") for field, value in changes.items())
        yield f"Variant {code(f'{name}:{variant}')}: {settings}."


def _travelling(name: str) -> Iterator[str]:
    rows = _rows_of_bytes(name)
    if rows:
        yield "Bytes of one client in one round, for [CNN-1 on images of 3x32x32](../ref-communication.md):"
        yield table(("run as", "10 classes: down", "up", "100 classes: down", "up"), rows)
    if any("held classes" in row[3] for row in _payload_rows(name)):
        yield "*Held classes*: the rows of a class table whose count or flag is zero stay at home."
    files = [
        f"{name}{'-' * bool(variant)}{variant}.json" for variant in ("", *traits_of(_registry.method(name)).variants)
    ]
    golden = ", ".join(f"[{file}](../../tests/wire/{file})" for file in files)
    yield f"`atoll audit {name}` shows shapes and bytes. Name, type and shape of all that travels: {golden}."


def _rows_of_bytes(name: str) -> list[list[str]]:
    """From the page of bytes as it is: counting them anew for every page would take minutes."""
    page = (FOLDER / "ref-communication.md").read_text(encoding="utf-8")
    lines = re.findall(rf"^\| `{name}(?::[\w-]+)?` \|.*$", page, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if NONE not in line]


def _telling(name: str) -> Iterator[Setting]:
    """The settings of a method, without those of an optimiser that are its usual ones."""
    usual = {kind: {s.name: s.default for s in settings_of(cls())} for kind, cls in OPTIMISERS.items()}
    kinds: dict[str, Any] = {}
    for s in settings_of(make(name)):
        field, _, part = s.name.partition(".")
        kinds.setdefault(field, s.default)
        if not part or usual[kinds[field]][part] != s.default:
            yield s


def _settings_table(settings: Iterable[Setting]) -> str:
    rows = ([code(s.name), shown(s.default), s.meaning, s.source] for s in settings)
    return table(("setting", "default", "meaning", "where the default comes from"), rows)


def _payload_rows(name: str) -> Iterator[list[str]]:
    types = contract(make(name))
    several = len(types.exchanges) > 1
    for at, messages in enumerate(types.exchanges, 1):
        step = f", exchange {at}" if several else ""
        yield from _field_rows(PLACES["down"] + step, messages.download, travels=True)
        yield from _field_rows(PLACES["up"] + step, messages.upload, travels=True)
    yield from _field_rows(PLACES["state"], types.state)
    yield from _field_rows(PLACES["server"], types.server)


def _field_rows(place: str, kind: Any, travels: bool = False) -> Iterator[list[str]]:
    if kind is Nothing:
        yield [place, "–", "nothing", "", ""]
    hints, markers = get_type_hints(kind), {f.metadata.get("rows") for f in fields(kind)}
    for f in fields(kind):
        how = ", ".join(_how(f, markers)) if travels else ""
        yield [place, code(f.name), _holds(hints[f.name]), how, f.metadata.get("about", "")]


def _holds(kind: Any) -> str:
    if kind == Params:
        return "named tensors"
    if kind == Tensor | None:
        return "tensor or nothing"
    return "tensor" if kind is Tensor else str(kind.__name__)


def _how(f: Any, markers: set[str | None]) -> Iterator[str]:
    if f.name in markers:
        yield "held classes, with their labels"
    if f.metadata.get("rows"):
        yield f"held classes, marked by `{f.metadata['rows']}`"
    if f.metadata.get("symmetric"):
        yield "upper triangles"


def _takes_terms(name: str) -> bool:
    return hasattr(_registry.method(name), "regularisers")


def _regulariser(name: str) -> Iterator[str]:
    cls: Any = _registry.regularisers()[name]
    yield f"### {name}"
    yield f"```\n{inspect.cleandoc(cls.__doc__)}\n```"
    yield _settings_table(settings_of(cls()))


# -- bytes ------------------------------------------------------------------------------------------------------------

TEN, HUNDRED = ReferenceFederation(public=100), ReferenceFederation(classes=100, held=10, public=100)


def communication_page() -> str:
    return joined(
        [
            "# Communication",
            NOTE,
            "Bytes that reach one client and leave it in one round, measured on what really travels, for CNN-1 on "
            f"images of 3x32x32. With 10 classes a client holds {TEN.held}, with 100 it holds {HUNDRED.held}; "
            f"every class has two owners, all take part, and {TEN.public} samples are public where a method needs "
            "some (multiply to get the bytes of more samples; FedHeNN's grow with the square). Empty class rows stay "
            "at home, and covariances travel as triangles. `~` marks sizes that depend on what was learnt, "
            f"{NONE} methods that CNN-1 lacks something for, such as BatchNorm. `atoll "
            "methods --models cnn5 --shape 1x28x28` gives the table for other models, `atoll audit METHOD` every "
            "field.",
            table(
                ("method", "10 classes: down", "up", "100 classes: down", "up"),
                (traffic_row(name) for name in SPECS),
            ),
        ]
    )


WIRE = FOLDER.parent / "tests" / "wire"


def _wire(name: str, variant: str = "") -> str:
    return (WIRE / f"{name}{'-' * bool(variant)}{variant}.json").read_text(encoding="utf-8")


SPECS = [
    spec
    for name, cls in _registry.methods().items()
    for spec in (
        name,
        *(f"{name}:{v}" for v in traits_of(cls).variants if _wire(name, v) != _wire(name)),
    )  # what sends the same
]


def traffic_row(spec: str) -> list[str]:
    sign = "~" if traits_of(_registry.method(spec.partition(":")[0])).varying_bytes else ""
    try:
        sizes = [size for nominal in (TEN, HUNDRED) for size in nominal.traffic(spec)]
    except AtollError:
        return [code(spec), *[NONE] * 4]
    return [code(spec), *(f"{sign}{size:,}" for size in sizes)]


# -- results ----------------------------------------------------------------------------------------------------------


def measured(name: str) -> dict[str, Any] | None:
    """What ``docs/measure.py`` found, if it was run."""
    file = FOLDER / "measured" / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return found


def results_page() -> str:
    known = yaml.safe_load((FOLDER / "experiments.yaml").read_text(encoding="utf-8"))
    return joined(
        [
            "# Results",
            NOTE,
            "Every table is made by one command; `python docs/measure.py NAME` runs it and keeps the numbers in "
            "[measured](measured). Settings are the defaults unless the command says otherwise, and nothing was "
            "tuned. Accuracies are in percent, means over clients and then over seeds, ± the standard deviation "
            "over three seeds. *By val* is the test accuracy of the round with the best validation accuracy, "
            "*worst 10 %* that of the worst clients in that round, *generic* the server's model (`~`: the "
            "average of the personal ones) on everybody's test samples ([how results are "
            "measured](explanation-evaluation.md)). Scales are those of a two-core machine, far below the "
            "papers'; differences smaller than the spread over seeds mean nothing. Tables made with `--rows` come from "
            "an earlier version, in which that option cut the test samples as well. All tables but that of "
            "the digits are from before the defaults of Ditto, FedDW, FedDF, FedHeNN, FedHKD, FedMD, FedProx, FedTGP, "
            "KT-pFL, MOON, pFedMe, SCAFFOLD and SCD changed, and before operations were counted by the samples "
            "worked on.",
            "## The five claims",
            "Each paper's main claim, decided by an experiment that was declared before it ran "
            "([how](how-to-papers.md#decide-a-claim)). A verdict is about that setting, which is smaller than the "
            "paper's; the page of each system says how it differs.",
            verdicts_table(),
            *(part for name, experiment in known.items() for part in _result(name, experiment)),
        ]
    )


def verdicts_table() -> str:
    """List the declared comparisons of the five systems with what was found."""
    rows = []
    for paper in list_claims():
        report = ClaimReport(read_claim(paper), FOLDER.parent / "papers" / paper / "results" / "claim")
        for row in comparison_sheet(report.claim, report.decided).rows:
            rows.append([f"[{report.claim.name}](../papers/{paper}/RESULTS.md)", *row])
    return table(("system", "comparison", "points", "95 % interval", "p (Holm)", "seeds", "verdict"), rows)


def readme_verdicts() -> str:
    """List what was decided about each system: the claim itself, and the comparison with training alone."""
    rows = []
    for paper in list_claims():
        report = ClaimReport(read_claim(paper), FOLDER.parent / "papers" / paper / "results" / "claim")
        for comparison, points, interval, _, _, verdict in comparison_sheet(report.claim, report.decided).rows:
            first = comparison == str(report.decided[0].pair)
            if first or comparison == f"{report.claim.name} > Local":
                system = f"[{report.claim.name}](papers/{paper}/RESULTS.md)" if first else ""
                rows.append([system, comparison, points, interval, verdict])
    return table(("system", "comparison", "points", "95 % interval", "verdict"), rows)


def _result(name: str, experiment: dict[str, str]) -> Iterator[str]:
    found = measured(name)
    if found is None:
        return
    yield f"## {experiment['title']}"
    yield experiment["setting"]
    yield f"<!-- not run: it takes minutes to hours -->\n```\n{found['command']}\n```"
    head = ("method", "by val", "final", "best", "worst 10 %", "generic", "MB up", "MB down", "GFLOPs")
    yield table(head, map(_result_row, found["rows"]))
    yield experiment.get("remark", "")


def _result_row(row: dict[str, Any]) -> list[str]:
    marks = [_mark(row[field]) for field in ("best_by_val", "final", "best", "worst_decile")]
    generic = ("~" if row["averaged"] else "") + _mark(row["generic"])
    costs = [quantity(row[field]) for field in ("mb_up", "mb_down", "gflops")]
    return [code(row["name"]), *marks, generic if row["generic"] else NONE, *costs]


def _mark(stat: list[float] | None) -> str:
    return format_score(Stat(*stat)) if stat else NONE


def _measured(name: str) -> Iterator[str]:
    """How the method and its variants did wherever they took part, beside Local, whatever came out."""
    rows = [row for experiment in _experiments() for row in _part_in(name, *experiment)]
    if rows:
        yield "## Measured"
        yield (
            "Personal accuracy in percent, chosen by validation, mean and standard deviation over seeds; the "
            "meaning and the settings of each line: [Results](../results.md)."
        )
        yield table(("experiment", "run as", "accuracy", "Local", "seeds above Local", "worst 10 %", "generic"), rows)


def _experiments() -> Iterator[tuple[str, dict[str, Any]]]:
    """Titles, and rows by the name of the method."""
    known = yaml.safe_load((FOLDER / "experiments.yaml").read_text(encoding="utf-8"))
    for name, experiment in known.items():
        found = measured(name)
        if found is not None:
            yield experiment["title"], {row["name"]: row for row in found["rows"]}


def _part_in(name: str, title: str, rows: dict[str, Any]) -> Iterator[list[str]]:
    local = rows.get("local")
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    for spec, row in rows.items():
        if re.split("[:+]", spec)[0] != name:
            continue
        by_seed = row["by_seed"]
        wins = sum(value > local["by_seed"][seed] for seed, value in by_seed.items()) if local else 0
        beside = (
            [_mark(local["best_by_val"]), f"{wins} of {len(by_seed)}"] if local and spec != "local" else [NONE, NONE]
        )
        generic = ("~" if row["averaged"] else "") + _mark(row["generic"]) if row["generic"] else NONE
        yield [
            f"[{title}](../results.md#{anchor})", code(spec), _mark(row["best_by_val"]), *beside,
            _mark(row["worst_decile"]), generic,
        ]  # fmt: skip


if __name__ == "__main__":
    for file, text in (pages() | {"ref-communication.md": communication_page()}).items():
        (FOLDER / file).parent.mkdir(exist_ok=True)
        (FOLDER / file).write_text(text, encoding="utf-8")
        print(f"Wrote {FOLDER / file}")
