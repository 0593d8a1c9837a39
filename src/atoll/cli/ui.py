"""``atoll ui``: open the dashboard."""

from pathlib import Path

import click

from ..dashboard.server import serve

PORT = 8642


@click.command()
@click.argument("root", default="runs", type=click.Path(path_type=Path), metavar="[RUNS_DIR]")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Port; 0 for any free one."
)
@click.option("--no-browser", is_flag=True, help="Only print the address; open no browser.")
def ui(root: Path, port: int, no_browser: bool) -> None:
    """Open a page that lists the runs below RUNS_DIR, follows them live and compares them.

    RUNS_DIR is "runs" unless given. The page is served to this machine only and asks for the token in the address that
    is printed. It never writes files, and loads nothing from the network. Ctrl-C ends it.
    """
    serve(root, port, not no_browser, click.echo)
