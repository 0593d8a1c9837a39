"""Run a method between sites, from a job to the report."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...config import Config
from ...data.tables.noisy_statistics import add_up_noisy
from ...data.tables.statistics import add_up
from ...engine.build import build_experiment
from ...engine.experiment import Watch
from ...engine.result import Result
from ...engine.setup import Setup, build_method
from ...errors import AtollError
from ...privacy.setup import table_noise
from ...storage.run_dir import InUse, RunDir
from ...typing import ClientId
from ...utils.files import to_json
from ...utils.parsing import Json
from ...utils.runtime import one_thread
from ..site.config import read_public
from ..table_agreement import TableAgreement, read_agreement
from ..transport.base import Transport
from ..transport.protocol import AWAY, CODES, Frame
from ..transport.requests import SiteRequests
from .environment import Sites
from .handshake import SiteDescription, announcement, build_remote_setup, compare, hello, read_description
from .job import DeploymentJob
from .table_handshake import agreed_columns, ask_statistics, describe_classes, read_statistics, statistics_request

DEPLOYMENT, EVENTS = "deployment.json", "events.jsonl"
LINGER = 60.0  # seconds for the app of a killed server to release the run directory
GATHER = 20.0  # seconds that a resumed run waits for its sites at the start; after 15 idle minutes they ask so often


def run_deployment(
    job: DeploymentJob, transport: Transport, watch: Watch | None = None, clock: Callable[[], float] = time.monotonic
) -> Result:
    """Run a job to its end, from the latest checkpoint if there is one.

    Args:
        job: the request for the run.
        transport: carries requests to sites.
        watch: called with the number of rounds done and, after an evaluation, the metrics.
        clock: measures the time that sites take to answer, in seconds.
    """
    with _freed(Path(job.run_dir)) as run_dir, one_thread():
        log = _event_log(run_dir.path)
        try:
            requests = SiteRequests(transport, job.timeouts, partial(log, "note"), clock)
            result = _Run(job, run_dir, requests, log).play(watch or (lambda t, line: None))
        except AtollError as reason:
            log("error", str(reason))
            raise
        if job.report:
            from ...report import html  # takes long to import

            html.write([run_dir.path], run_dir.path / "report.html")
        log("end", "The run has ended.")
        return result


def _freed(path: Path) -> RunDir:
    """Wait until the run directory is free. The app of a killed server may hold it for a while."""
    end = time.monotonic() + LINGER
    while True:
        try:
            with RunDir(path):
                return RunDir(path)
        except InUse:
            if time.monotonic() >= end:
                raise
            time.sleep(1)


def _event_log(folder: Path) -> Callable[[str, str], None]:
    """Return a function that logs notes and errors: to the screen, and to a file beside the metrics."""

    def log(event: str, text: str) -> None:
        print(text, flush=True)
        with (folder / EVENTS).open("a") as file:
            file.write(to_json({"time": time.time(), "event": event, "text": text}) + "\n")

    return log


class _Run:
    """A deployed run, from the handshake with the sites to the end."""

    def __init__(self, job: DeploymentJob, run_dir: RunDir, caller: SiteRequests, log: Callable[[str, str], None]):
        self.job = job
        self.run_dir = run_dir
        self.caller = caller
        self.log = log
        self.public = read_public(job.public) if job.public else None

    def play(self, watch: Watch) -> Result:
        """Run to the end."""
        config = self.job.configured()
        build_method(config)  # Raises errors in the options before sites are asked.
        known = self._known() if not self.job.force else None
        descriptions = self._handshake(config, known)
        tables = self._agree(config, descriptions, known)
        setup = build_remote_setup(config, descriptions, self.public, tables)
        if tables is not None:
            setup = replace(setup, preparations=replace(setup.preparations, sent=tables.sent))
        self.run_dir.start(setup.config, resume=not self.job.force, force=self.job.force)
        name = known["run"] if known else secrets.token_hex(16)
        self.run_dir.write_json(
            DEPLOYMENT,
            {
                "run": name,
                "cards": [description._asdict() for description in descriptions],
                "tables": None if tables is None else tables.to_stored(),
            },
        )
        self._announce(setup, name, tables, first=known is None)
        sites = Sites(setup, self.caller, name, self.job.least)
        result = build_experiment(setup, self.run_dir, sites).run(watch)
        sites.end()
        return result

    def _known(self) -> Json | None:
        """Return the run's identifier and descriptions of sites from an earlier start, or None."""
        try:
            return dict(json.loads((self.run_dir.path / DEPLOYMENT).read_bytes()))
        except (OSError, ValueError):
            return None

    def _handshake(self, config: Config, known: Json | None) -> list[SiteDescription]:
        """Ask the sites for their descriptions. A new run needs all sites, a resumed run ``job.least`` of them."""
        sites = list(self.job.sites)
        kept = {values["site"]: read_description(values["site"], values) for values in known["cards"]} if known else {}
        if known and list(kept) != sites:
            raise AtollError(
                f"The run in {self.job.run_dir!r} began with the sites {', '.join(kept)}, not {', '.join(sites)}. "
                "Name the same ones, or start again with --force, which replaces the run."
            )
        descriptions = dict(kept)
        for site, reply in self._start(dict.fromkeys(sites, hello(config)), first=known is None):
            descriptions[site] = self._checked(read_description(site, reply.head), kept)
        return [descriptions[site] for site in sites]

    def _start(self, frames: Mapping[ClientId, Frame], first: bool) -> Iterator[tuple[ClientId, Frame]]:
        """Yield the replies of sites before the run. A refusal ends it; an absent site only if it is needed."""
        timeouts = self.caller.timeouts
        least = len(frames) if first else self.job.least
        if not first:
            timeouts = timeouts._replace(timeout=min(GATHER, timeouts.timeout))
        for site, reply in self.caller.ask(frames, least, "The start", timeouts, strict=True):
            if reply.code is None:
                yield site, reply
            elif reply.code not in AWAY:
                raise AtollError(f"Site {site!r} cannot take part: {CODES[reply.code]}.")

    def _checked(self, description: SiteDescription, kept: Mapping[ClientId, SiteDescription]) -> SiteDescription:
        compare([description])
        if kept.get(description.site, description) != description:
            raise AtollError(
                f"Site {description.site!r} is not what it was when the run began: its samples, its model or its "
                "public samples changed. Bring them back, or start again with --force, which replaces the run."
            )
        return description

    def _agree(
        self, config: Config, descriptions: Sequence[SiteDescription], known: Json | None
    ) -> TableAgreement | None:
        """Let sites agree on columns, classes and statistics; a resumed run keeps the first agreement."""
        if known:
            return None if known["tables"] is None else read_agreement(known["tables"])
        options = config.table_options
        columns = agreed_columns(descriptions, options)
        compare(descriptions)
        request = statistics_request(descriptions, columns, options)
        if request is None:
            return TableAgreement(columns, None, {}) if columns else None
        rows = {description.site: description.rows[0] for description in descriptions}
        replies = self._start(dict.fromkeys(rows, ask_statistics(config, request)), first=True)
        sent = {site: read_statistics(site, reply, request, rows[site]) for site, reply in replies}
        ordered = {site: sent[site] for site in rows}
        parts = list(ordered.values())
        noise = None if config.dp is None else table_noise(config, build_method(config))
        agreed = add_up(parts) if noise is None else add_up_noisy(parts, request, noise)
        if request.class_names:
            self.log("note", describe_classes(ordered, agreed))
        return TableAgreement(columns, agreed, ordered)

    def _announce(self, setup: Setup, run: str, tables: TableAgreement | None, first: bool) -> None:
        """Announce a new run to all sites. In a resumed run, a site that does not know the run gets it on request."""
        frames = announcement(setup, run, self.public, tables)
        if first:
            for _ in self._start(frames, first):
                pass
        self.caller.announce(frames)
