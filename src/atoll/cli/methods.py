"""``atoll methods`` and ``atoll models``: list methods and architectures."""

from collections.abc import Iterator

import click
from rich.table import Table

from .. import models as zoo
from ..analysis.communication import ReferenceFederation
from ..core.hooks import TakesRegularisers, takes_budget
from ..core.limits import why_star, why_synchronous
from ..core.method import traits_of
from ..core.traits import Need
from ..errors import AtollError
from ..methods import _registry
from ..methods._factory import make, settings_of, split_variant
from ..utils.files import to_json
from ..utils.parsing import Json
from .console import console

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("name", required=False, metavar="[METHOD]")
@click.option("--models", default="mlp", show_default=True, help="Models for which bytes are counted.")
@click.option("--shape", default="1x8x8", show_default=True, help="Shape of the clients' images.")
@click.option("--classes", type=click.IntRange(1), default=10, show_default=True, help="Number of classes.")
@click.option("--held", type=click.IntRange(1), default=2, show_default=True, help="Number of classes of each client.")
@click.option(
    "--public",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Number of public samples, for methods that need them.",
)
@as_json_option
def methods(name: str | None, as_json: bool, models: str, shape: str, **nominal: int) -> None:
    """List the methods; with METHOD, show its source, its algorithm and its hyper-parameters.

    Bytes are those of one client in one round, with the model, images and classes that the options name.
    """
    if nominal["held"] > nominal["classes"]:
        raise AtollError(f"--held must be at most --classes, {nominal['classes']}, not {nominal['held']}.")
    if name is None:
        _list(ReferenceFederation(tuple(models.split(",")), _sides(shape), **nominal), as_json)
    else:
        make(name)  # Refuses an unknown variant or setting behind the colon.
        _describe(split_variant(name)[0], as_json)


def _sides(text: str) -> tuple[int, int, int]:
    sides = [int(n) for n in text.split("x") if n.isdecimal() and int(n)]
    if len(sides) != 3:
        raise AtollError(f"--shape must be CHANNELSxHEIGHTxWIDTH, such as 3x32x32, not {text!r}.")
    return sides[0], sides[1], sides[2]


def facts(name: str) -> Json:
    """Return the properties of a method for listings."""
    cls = _registry.method(name)
    card = _registry.method_info(cls)
    traits = traits_of(cls)
    return {
        "name": name,
        "title": card.title,
        "citation": card.citation,
        "url": card.url,
        "year": card.year,
        "family": traits.family,
        "needs": sorted(need.name for need in traits.needs),
        "heterogeneous": Need.SAME_ARCHITECTURE not in traits.needs,
        "vectorisable": traits.vmap is not False,
        "wait_free": traits.wait_free is not None,
        "until_download": takes_budget(cls),
        "why_synchronous": why_synchronous(cls()),
        "why_star": why_star(cls()),
        "server_reads": traits.server_reads.value,
        "guards": list(traits.guards),
        "private_training": traits.private_training,
        "variants": sorted(traits.variants),
        "regularisers": isinstance(cls(), TakesRegularisers),
    }


def _list(nominal: ReferenceFederation, as_json: bool) -> None:
    listed = [facts(name) | {"bytes": _bytes(nominal, name)} for name in _registry.methods()]
    if as_json:
        click.echo(to_json(listed, indent=1))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("method", "source", "year", "family", "heterogeneous", "vmap", "needs", "bytes down", "bytes up"):
        table.add_column(head, justify="right" if head.startswith("bytes") else "left")
    for fact in listed:
        needs = ", ".join(n for n in fact["needs"] if n != Need.SAME_ARCHITECTURE.name)
        flags = ("yes" if fact[name] else "no" for name in ("heterogeneous", "vectorisable"))
        sizes = (_size(fact["bytes"], way) for way in ("down", "up"))
        source = fact["citation"].partition(",")[0]
        table.add_row(fact["name"], source, str(fact["year"] or ""), fact["family"], *flags, needs, *sizes)
    console().print(table)
    shape, public = "x".join(map(str, nominal.shape)), f"{nominal.public:,} public samples if needed"
    click.echo(
        f"\nBytes: one client, one round; {', '.join(nominal.models)} on {shape}, {nominal.held} of {nominal.classes} "
        f"classes held, {public}; ~ varies with the trained weights."
    )
    click.echo(f"Regularisers (--with): {', '.join(_registry.regularisers())}. More: atoll methods METHOD")


def _bytes(nominal: ReferenceFederation, name: str) -> Json:
    """Return the bytes of a round, or the reason why they cannot be counted."""
    try:
        return {**nominal.traffic(name)._asdict(), "varying": traits_of(_registry.method(name)).varying_bytes}
    except AtollError as reason:
        return {"refused": str(reason)}


def _size(found: Json, way: str) -> str:
    if "refused" in found:
        return "–"
    return ("~" if found["varying"] else "") + f"{found[way]:,}"


def _describe(name: str, as_json: bool) -> None:
    fact, card, method = facts(name), _registry.method_info(_registry.method(name)), make(name)
    listed = [s._asdict() for s in settings_of(method)]
    if as_json:
        click.echo(to_json({**fact, "algorithm": card.algorithm, "settings": listed}, indent=1))
        return
    source = ". ".join(filter(None, (card.title, card.citation, card.url)))
    click.echo("\n\n".join(filter(None, (source, card.algorithm))) + "\n")
    click.echo(f"Family: {fact['family']}. Needs: {', '.join(fact['needs']) or 'nothing'}.")
    guarded = ", ".join(fact["guards"]) or "nothing, so that it is refused"
    click.echo(f"The server reads {fact['server_reads']}. --robust guards {guarded}.")
    for line in _round_options(fact):
        click.echo(line)
    for variant, changes in traits_of(_registry.method(name)).variants.items():
        click.echo(f"Variant {name}:{variant}: {', '.join(f'{k}={v}' for k, v in changes.items())}")
    table = Table(box=None, header_style="bold", pad_edge=False, title_justify="left")
    for head in ("setting", "default", "meaning", "where the default comes from"):
        table.add_column(head)
    for s in listed:
        table.add_row(s["name"], str(s["default"]), s["meaning"], s["source"])
    click.echo("")
    console().print(table)


def _round_options(fact: Json) -> Iterator[str]:
    """Yield a line for each option of rounds: whether the method allows it, and why not."""
    options = (("--schedule", "synchronous", "why_synchronous"), ("--topology", "star", "why_star"))
    for option, only, name in options:
        yield f"{option}: {only} only, because {fact[name]}." if fact[name] else f"{option}: any."
    if fact["wait_free"]:
        yield f"--wait-free: yes, {'also' if fact['until_download'] else 'not'} with --until-download."


@click.command()
@as_json_option
def models(as_json: bool) -> None:
    """List the architectures, with parameters and feature width for 3x32x32 images and 10 classes."""
    click.echo(to_json([row._asdict() for row in zoo.catalogue()], indent=1) if as_json else zoo.table())
