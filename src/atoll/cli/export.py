"""``atoll export``: write a trained model to a file for use elsewhere."""

from pathlib import Path
from urllib.parse import quote

import click

from ..inference.export import FORMATS, export_model
from ..utils.files import to_json
from ..utils.parsing import Json
from .console import counted, progress
from .predict import open_models, print_round, round_option


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|SITE_DIR")
@click.option(
    "--client", "clients", multiple=True, help="Client whose model to write; may be repeated.  [default: all clients]"
)
@round_option
@click.option(
    "--form", type=click.Choice(tuple(FORMATS)), default="safetensors", show_default=True, help="File format."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder.  [default: export in RUN or SITE_DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print the manifests as JSON.")
def export(run: Path, clients: tuple[str, ...], which: str, form: str, out: Path | None, as_json: bool) -> None:
    """Write personalised models for other programs, each with a manifest, checked on the client's test samples."""
    models = open_models(run, which)
    root = out or run / "export"
    manifests: list[Json] = []
    chosen = [models.client(name) for name in clients] or list(models.clients)
    with progress(as_json) as bars:
        watch = counted(bars, "models")
        for at, client in enumerate(chosen):
            folder = root / quote(client, safe="").replace(".", "%2E") / form
            manifests.append(export_model(models, client, form, folder) | {"folder": str(folder)})
            watch(at + 1, len(chosen))
    print_round(models, which)
    if as_json:
        click.echo(to_json(manifests, indent=1))
    else:
        for m in manifests:
            click.echo(f"{m['folder']}: {m['file']}, checked on {m['checked']['rows']} samples")
