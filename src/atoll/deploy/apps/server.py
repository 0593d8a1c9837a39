"""Flower's app at the server: a run from a job file, whose path is in the run's configuration."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..conduct import conduct, read_job
from ..flower import FlowerLine

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    job = read_job(Path(str(context.run_config["job"])))
    conduct(job, FlowerLine(grid, {site: how.get("key") for site, how in job.sites.items()}))
