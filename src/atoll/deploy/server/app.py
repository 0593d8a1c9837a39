"""Flower's server app: runs the deployment job whose file is named in the run's configuration."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..transport.flower import FlowerTransport
from .executor import JOBS
from .job import read_job
from .run import run_deployment
from .upload_quota import AskedBytes

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    name = Path(str(context.run_config["job"])).name  # A path could name a file of another account.
    jobs = Path(os.environ[JOBS])
    job = read_job(jobs / name)
    run_deployment(job, FlowerTransport(grid, job.sites, AskedBytes(jobs.parent).add))
