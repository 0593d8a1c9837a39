"""``atoll schema``: print the JSON Schema of configuration files."""

import click

from ..experiments.config_schema import schema as config_schema
from ..utils.files import to_json


@click.command()
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors that complete and check YAML."""
    click.echo(to_json(config_schema(), indent=1))
