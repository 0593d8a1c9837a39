"""Build the parts of an experiment from its setup, and run it."""

from collections.abc import Callable
from dataclasses import fields

from ..aggregation.fixed_point import Fixed, largest
from ..aggregation.robust import guard_for
from ..aggregation.staleness import is_discounted
from ..clients.model_store import ROOM, ModelStore
from ..clients.run_stores import RunStores
from ..clients.state_store import DiskStore, MemoryStore, RemoteState, Store
from ..clients.tasks import no_filter
from ..clients.validation.constraints import LARGEST
from ..clients.validation.validator import Validator
from ..core.contract import Contract, contract
from ..core.payloads import Payload
from ..core.schema import constraints_of
from ..methods._factory import settings_of
from ..privacy.policy import Privacy
from ..simulation.faults import Faults
from ..simulation.schedule import read_schedule
from ..simulation.timing import RoundTimer
from ..storage.checkpoint import Checkpoints
from ..storage.run_dir import RunDir
from ..utils.runtime import kept_memory, on_device, one_thread, plain_torch, spared_objects
from ..utils.signals import stoppable
from .accounting import Accounting
from .buffered import BufferedRunner
from .checkpoint_schedule import CheckpointSchedule
from .cohort import Cohorts
from .compatibility import has_effect
from .decentralised import DecentralisedRunner
from .ending import Ending
from .environment import BackendInputs, Environment, Simulation
from .evaluator import Evaluator
from .experiment import EvaluationLog, Experiment, Watch
from .metrics_writer import MetricsWriter
from .recorder import NullRecorder, Recorder, RunRecorder
from .result import Result
from .resume import Checkpointing, Resumable
from .round import RoundPolicy
from .round_runner import RoundRunner
from .setup import Setup, build_faults


def run_experiment(
    setup: Setup, run_dir: RunDir | None = None, watch: Watch | None = None, log: EvaluationLog | None = None
) -> Result:
    """Run an experiment to the end, from the latest checkpoint if the directory has one.

    An interrupted run saves the last whole round and raises KeyboardInterrupt.

    Args:
        setup: a run that is ready to start.
        run_dir: directory for the files of the run; None writes nothing.
        watch: called after every round, with its number and its metrics (None if it was not evaluated).
        log: called after every evaluation, with its metrics and the scores of all clients.

    Returns:
        Scores, models and notes of the run.
    """
    device = on_device(setup.config.device)
    with plain_torch(), one_thread(), kept_memory(), spared_objects(), device, stoppable():
        return build_experiment(setup, run_dir).run(watch or (lambda t, line: None), log)


def build_experiment(setup: Setup, run_dir: RunDir | None = None, environment: Environment | None = None) -> Experiment:
    """Build an experiment with all its parts.

    Args:
        setup: a run that is ready to start.
        run_dir: directory for the files of the run; None writes nothing.
        environment: where the clients run; by default a simulation.
    """
    config, method, pool = setup.config, setup.method, setup.pool
    environment = environment or Simulation(setup)
    types = contract(method)._replace(state=RemoteState) if pool.remote else contract(method)
    checkpoints = Checkpoints(run_dir.path, types, setup.identity()) if run_dir else None
    stores = open_stores(setup, run_dir, types, checkpoints)
    privacy = Privacy(config, method, pool, run_dir.path if run_dir else None)
    faults = build_faults(config, pool.ids)
    cohorts = Cohorts(pool.ids, config.rate, config.seed, faults, config.rounds, config.eval_every, config.deadline)
    checks = Validator(method, pool, config.seed, config.max_norm, _largest_value(setup), privacy.spare_rows)
    notes = list(setup.notes)
    settings = {setting.name: setting.default for setting in settings_of(method)}
    recorder: NullRecorder | RunRecorder = NullRecorder()
    if run_dir is not None:
        recorder = RunRecorder(run_dir, config, environment.holdings(), settings, setup.preparations)
    policy = _policy(setup, checks, recorder, faults, notes.append)
    backend = environment.open_backend(
        BackendInputs(
            setup=setup,
            stores=stores,
            upload_filter=faults.upload_filter(
                privacy.upload_filter if privacy.on else no_filter, constraints_of(method)
            ),
            cohort=len(cohorts.sample(0)),
            checks=checks,
            checkpoints=checkpoints,
        )
    )
    timer = RoundTimer(
        setup.devices,
        pool,
        faults,
        seed=config.seed,
        deadline=config.deadline,
        constraints=constraints_of(method),
    )
    accounting = Accounting(setup, cohorts, timer, privacy)
    evaluator = Evaluator(method, pool, backend, config.seed, stores.server_side, faults.poisoned)
    checkpointing = Checkpointing(
        stores,
        _extras(privacy, recorder),
        checkpoints=checkpoints,
        federation=setup.federation.name,
        neighbours=setup.neighbours,
        # A round that is repeated after a crash spends its budget again, so every round is saved under a budget.
        schedule=CheckpointSchedule(1 if privacy.budget else config.checkpoint_every),
        before_save=recorder.sync,
    )
    return Experiment(
        setup=setup,
        environment=environment,
        stores=stores,
        privacy=privacy,
        rounds=_runner(setup, RoundRunner(setup, backend, stores.server_side, cohorts, policy, timer, accounting)),
        accounting=accounting,
        ending=Ending(config, privacy, cohorts, pool.problem.criterion),
        evaluator=evaluator,
        metrics=MetricsWriter(evaluator, environment, privacy, recorder, setup, stores.models),
        recorder=recorder,
        checkpointing=checkpointing,
        notes=notes,
    )


def _runner(setup: Setup, plain: RoundRunner) -> RoundRunner:
    """Return what runs the rounds of a configuration, with the parts of ``plain``."""
    parts = {f.name: getattr(plain, f.name) for f in fields(RoundRunner) if f.init}
    schedule = read_schedule(setup.config.schedule)
    if setup.neighbours is not None:
        return DecentralisedRunner(**parts, neighbours=setup.neighbours)
    return plain if schedule.buffer is None else BufferedRunner(**parts, buffer=schedule.buffer)


def open_stores(setup: Setup, run_dir: RunDir | None, types: Contract, checkpoints: Checkpoints | None) -> RunStores:
    """Open the stores of client states and measured models: in memory, or on disk in the run directory."""

    def open_store(name: str, kind: type[Payload]) -> Store:
        if setup.config.store == "memory" or run_dir is None:
            return MemoryStore()
        return DiskStore(run_dir.path / name, kind, setup.config.cache)

    clients = open_store("states", types.state)
    models = ModelStore(
        clients,
        types,
        on=setup.config.keep_models,
        room=ROOM if isinstance(clients, MemoryStore) else 0,
        folder=run_dir.path / "models" if run_dir else None,
        read_object=checkpoints.get if checkpoints else None,
    )
    return RunStores(clients=clients, server_side=open_store("per_client", types.per_client), models=models)


def _extras(privacy: Privacy, recorder: NullRecorder | RunRecorder) -> dict[str, Resumable]:
    extras: dict[str, Resumable] = {"privacy": privacy}
    return extras | {"audit": recorder} if isinstance(recorder, RunRecorder) else extras


def _policy(
    setup: Setup, checks: Validator, recorder: Recorder, faults: Faults, note: Callable[[str], None]
) -> RoundPolicy:
    """Build the server's policy for uploads; ``note`` receives sentences on limits that concern the user."""
    config, method = setup.config, setup.method
    schedule = read_schedule(config.schedule)
    declared = constraints_of(method)
    if schedule.buffer is not None and declared and not is_discounted(declared):
        note(
            f"Uploads of {config.method} declare no model, no change and no counted class table, so that stale ones "
            "count in full."
        )
    policy = RoundPolicy(
        checks=checks,
        guard=guard_for(method, config.robust, note) if config.robust else None,
        fixed=Fixed(note) if config.sums == "fixed" else None,
        staleness=None if schedule.buffer is None else schedule.weight,
        on_upload=recorder.record_upload,
    )
    if (poison := faults.poison) and not has_effect(poison.kind, method, setup.pool):
        note(f"--poison {config.poison} changes nothing that {config.method} uploads.")
    return policy


def _largest_value(setup: Setup) -> float:
    """Return the largest absolute value in an upload, such that no sum in fixed point overflows."""
    rows = len(setup.pool.train.all.y)
    return min(LARGEST, largest(rows)) if setup.config.sums == "fixed" else LARGEST
