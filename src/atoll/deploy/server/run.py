"""A whole run between sites, from a job file: what the server's side does, whatever line carries it."""

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from ...clients.state_store import Kept
from ...config import Config, from_dict, read_yaml
from ...core.contract import contract
from ...engine.build import build_experiment
from ...engine.environment import BackendInputs
from ...engine.experiment import Watch
from ...engine.result import Result
from ...engine.setup import Setup, build_method
from ...errors import AtollError, unknown
from ...storage.checkpoint import Checkpoints
from ...storage.metrics import OptionalMetrics, RoundMetrics
from ...storage.run_dir import InUse, RunDir
from ...typing import ClientId
from ...utils.files import to_json
from ...utils.runtime import one_thread
from ..site.config import read_public
from ..site.privacy_rules import FLOOR
from ..transport.base import Transport
from ..transport.protocol import AWAY, CODES, Frame
from ..transport.requests import SiteRequests, Timeouts
from .backend import SiteBackend
from .handshake import SiteDescription, announcement, build_remote_setup, compare, hello, holdings, read_description

DEPLOYMENT, EVENTS = "deployment.json", "events.jsonl"
LINGER = 60.0  # seconds for an earlier server's app to let go of the run directory
GATHER = 10.0  # seconds that a run which goes on gives its sites to be there from the start


@dataclass(frozen=True)
class DeploymentJob:
    """What the server is asked to do; the same job again continues where the run directory says."""

    run_dir: str
    config: Mapping[str, Any]  # of the run, as `atoll run` has it; but there is a checkpoint after every round
    sites: Mapping[ClientId, Mapping[str, Any]]  # in the order of clients; each may say by what to know it ("key")
    round_timeout: float = 600.0
    min_clients: int | None = None  # default: all
    wait_limit: float = 3600.0
    retry_pause: float = 5.0
    public: str = ""  # file of public rows
    force: bool = False  # replace the run that is there
    report: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)  # not used here

    def __post_init__(self) -> None:
        if not self.sites:
            raise AtollError("A job needs sites.")
        if not 1 <= self.least <= len(self.sites):
            raise AtollError(
                f"--min-clients must be from 1 to {len(self.sites)}, the number of sites, not {self.least}."
            )
        if min(self.round_timeout, self.wait_limit) <= 0:
            raise AtollError("--round-timeout and the limit of waiting must be above 0 seconds.")

    @property
    def least(self) -> int:
        return len(self.sites) if self.min_clients is None else self.min_clients

    @property
    def timeouts(self) -> Timeouts:
        return Timeouts(self.round_timeout, self.wait_limit, self.retry_pause)

    def configured(self) -> Config:
        fixed = {"checkpoint_every": 1, "out": self.run_dir}
        return from_dict({"min_class_count": FLOOR, **self.config, **fixed})


def read_job(path: Path) -> DeploymentJob:
    """A job from a JSON or YAML file."""
    values, known = read_yaml(path), {f.name for f in fields(DeploymentJob)}
    for name in values:
        if name not in known:
            raise unknown(f"entry in {str(path)!r}", str(name), known)
    try:
        return DeploymentJob(**values)
    except TypeError as reason:
        raise AtollError(f"{str(path)!r} is no job: {reason}.") from reason


def run_deployment(
    job: DeploymentJob, line: Transport, watch: Watch | None = None, clock: Callable[[], float] = time.monotonic
) -> Result:
    """Run to the end, from the latest checkpoint if there is one; ``clock`` is the one that patience goes by."""
    with _freed(Path(job.run_dir)) as run_dir, one_thread():
        say = _events(run_dir.path)
        try:
            result = _Run(job, run_dir, SiteRequests(line, job.timeouts, say, clock)).play(
                watch or (lambda t, line: None)
            )
        except AtollError as reason:
            say(str(reason), "error")
            raise
        if job.report:
            from ...report import html  # drawing takes long to import

            html.write([run_dir.path], run_dir.path / "report.html")
        say("The run has ended.", "end")
        return result


def _freed(path: Path) -> RunDir:
    """The run directory, once it is free: the app of a server that was killed may live on for a while."""
    end = time.monotonic() + LINGER
    while True:
        try:
            with RunDir(path):
                return RunDir(path)
        except InUse:
            if time.monotonic() >= end:
                raise
            time.sleep(1)


def _events(folder: Path) -> Callable[..., None]:
    """Tell what happens besides rounds: on the screen, and in a file beside the metrics."""

    def say(text: str, event: str = "note") -> None:
        print(text, flush=True)
        with (folder / EVENTS).open("a") as file:
            file.write(to_json({"time": time.time(), "event": event, "text": text}) + "\n")

    return say


class _Run:
    """From hello to the end."""

    def __init__(self, job: DeploymentJob, run_dir: RunDir, caller: SiteRequests):
        self.job, self.run_dir, self.caller = job, run_dir, caller
        self.public = read_public(job.public) if job.public else None

    def play(self, watch: Watch) -> Result:
        config = self.job.configured()
        build_method(config)  # a mistake in it is told before anybody is asked
        known = self._known() if not self.job.force else None
        descriptions = self._handshake(config, known)
        setup = build_remote_setup(config, descriptions, self.public)
        self.run_dir.start(setup.config, resume=not self.job.force, force=self.job.force)
        name = known["run"] if known else secrets.token_hex(16)
        self.run_dir.write_json(
            DEPLOYMENT, {"run": name, "cards": [description._asdict() for description in descriptions]}
        )
        self._announce(setup, name, first=known is None)
        sites = Sites(setup, self.caller, name, self.job.least)
        result = build_experiment(setup, self.run_dir, sites).run(watch)
        sites.end()
        return result

    def _known(self) -> dict[str, Any] | None:
        """What an earlier start of the same run found out; without a checkpoint the run begins anew."""
        try:
            return dict(json.loads((self.run_dir.path / DEPLOYMENT).read_bytes()))
        except (OSError, ValueError):
            return None

    def _handshake(self, config: Config, known: dict[str, Any] | None) -> list[SiteDescription]:
        """The sites of the run: all must be there when it begins, enough of them when it goes on."""
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
        """Ask before anything runs: a site that refuses ends it, one that is away only if it is needed."""
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
                f"Site {description.site!r} is not what it was when the run began: its rows, its model or its public "
                "rows changed. Bring them back, or start again with --force, which replaces the run."
            )
        return description

    def _announce(self, setup: Setup, run: str, first: bool) -> None:
        """Tell all sites of a new run. When it goes on they know of it; who does not is told when that shows."""
        frames = announcement(setup, run, self.public)
        if first:
            for _ in self._start(frames, first):
                pass
        self.caller.announce(frames)


class Sites:
    """The environment of a run whose clients are sites: their states and their test rows stay there.

    Args:
        setup: the run as far as the server knows it.
        caller: sends requests to sites.
        name: name of the run, by which sites know it.
        least: sites that must answer in a round.
    """

    def __init__(self, setup: Setup, caller: SiteRequests, name: str, least: int):
        self._setup = setup
        self._caller = caller
        self._name = name
        self._least = least
        self._backend: SiteBackend | None = None

    def open_backend(self, inputs: BackendInputs) -> SiteBackend:
        self._backend = SiteBackend(
            self._caller,
            self._name,
            inputs.states,
            contract(self._setup.method),
            self._least,
            partial(_needed_states, inputs.checkpoints),
            inputs.checks.limits,
        )
        return self._backend

    def holdings(self) -> dict[str, Any]:
        return holdings(self._setup)

    def resume(self, lines: Sequence[RoundMetrics]) -> None:
        """Continue to count late answers."""
        self._caller.late += lines[-1]["late"] if lines else 0

    def metrics(self) -> OptionalMetrics:
        return {"late": self._caller.late}

    def summary(self, lines: Sequence[RoundMetrics]) -> dict[str, Any]:
        return {"backend": "sites", "evaluated": "at the sites", "late": lines[-1]["late"]}

    def end(self) -> None:
        """Tell the sites that the run has ended."""
        assert self._backend is not None, "the run has not begun"
        self._backend.end(self._setup.pool.ids)


def _needed_states(checkpoints: Checkpoints | None) -> dict[ClientId, list[Kept]]:
    """Return the states of clients that a checkpoint may bring back."""
    needed: dict[ClientId, list[Kept]] = defaultdict(list)
    if checkpoints is None:
        return needed
    for i, name in sorted(checkpoints.held()):
        with suppress(OSError, AtollError):  # a checkpoint that is damaged brings nothing back
            needed[i].append(checkpoints.get_state(name))
    return needed
