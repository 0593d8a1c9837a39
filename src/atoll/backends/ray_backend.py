"""A Ray cluster: clients train on several machines, as tasks that can be done again anywhere.

The clients and the way out of them are put into Ray's object store once; a worker process keeps what it took out. A
task is a client's job and nothing else, so the loss of a worker or of a whole node costs time and never a result. Ray
pickles what is around the canonical bytes: whoever can reach a cluster can run code in it, with Atoll or without.
"""

import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pickle import dumps, loads
from types import ModuleType
from typing import Any, NamedTuple

import torch

from .._version import __version__
from ..clients.pool import ClientPool
from ..clients.state_store import Store
from ..clients.tasks import UploadFilter, no_filter
from ..core.method import AnyMethod, contract
from ..core.serialization import OWN, decode, decode_upload, encode
from ..errors import AtollError
from ..utils.runtime import kept_memory, one_thread
from .remote import RemoteBackend, UploadReady, WorkDone, WorkItem, run_work_item

ADDRESS = "RAY_ADDRESS"  # the variable that names a cluster, for Ray's own tools too
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: a Ray of one machine listens on 127.0.0.1 alone

_kept: dict[str, tuple[str, Any]] = {}  # in a worker process: the fleet and the last download, with their references


def require() -> Any:
    """Ray itself, or what to do if it is not there."""
    if find_spec("ray") is None:
        raise AtollError('--backend ray needs Ray, which is not installed. Install it with: pip install "atoll[ray]"')
    if not os.environ.get(ADDRESS):
        os.environ.setdefault(LOOPBACK, "0")  # read when Ray is imported
    return importlib.import_module("ray")


class Versions(NamedTuple):
    """What must be the same on all machines for the same bits."""

    atoll: str
    torch: str


HERE = Versions(__version__, torch.__version__)


class PackagedMethod(NamedTuple):
    """A method as it travels; a file of the user's goes along as text, as other machines do not have it."""

    versions: Versions
    sources: tuple[tuple[str, str], ...]  # modules that stand alone, base classes first
    method: bytes


class RayBackend(RemoteBackend):
    """Tasks of a Ray cluster, at most ``workers`` at a time; by default as many as the cluster has processors."""

    retries = 2

    def __init__(
        self,
        pool: ClientPool,
        store: Store,
        workers: int | None,
        upload_filter: UploadFilter = no_filter,
        fingerprints: bool = False,
    ):
        super().__init__(pool, store, upload_filter, fingerprints)
        self._ray = require()
        self._ours = not self._ray.is_initialized()  # or the program that called us has its own
        if self._ours:
            _connect(self._ray, workers)
        self._workers = workers
        self._shared = self._ray.put((pool, upload_filter))
        self._task = self._ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_task)
        self._recipe: tuple[AnyMethod, Any] | None = None  # a method, and where its recipe lies
        self._posted: dict[int, Any] = {}  # where downloads lie, by their numbers
        self._running: dict[Any, WorkItem] = {}  # by the streams of their answers

    def close(self) -> None:
        """Nothing waits for tasks that still run. A cluster that we joined goes on without us."""
        for stream in self._running:
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(stream, force=True)
        self._running = {}
        if self._ours:
            self._ray.shutdown()

    def _dispatch(self) -> None:
        if not self._running:
            self._posted = {}  # those of earlier exchanges
        most = self._workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        while self._orders and len(self._running) < most:
            order = self._orders.popleft()
            if order.download not in self._posted:
                self._posted[order.download] = self._ray.put(encode(order.data))
            state = None if order.state is None else encode(order.state)
            slim = order._replace(data=None, method=None, state=state)
            # In a list, a reference stays one: what it stands for is taken out once in a process, not in each task.
            references = [self._shared, self._cooked(order.method), self._posted[order.download]]
            self._running[self._task.remote(slim, references)] = order

    def _cooked(self, method: AnyMethod) -> Any:
        if self._recipe is None or self._recipe[0] is not method:
            self._recipe = method, self._ray.put(package_method(method))
        return self._recipe[1]

    def _collect(self) -> None:
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        for stream in ready:
            try:
                answer: UploadReady | WorkDone = self._ray.get(next(stream))
            except self._ray.exceptions.RayTaskError as error:  # the client's own: it would happen anywhere
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                self._requeue(self._running.pop(stream), f"three Ray workers died under it ({type(error).__name__})")
                self._dispatch()
                continue
            self._take(stream, answer)

    def _take(self, stream: Any, answer: UploadReady | WorkDone) -> None:
        types = contract(self._running[stream].method)
        if isinstance(answer, UploadReady):
            self._sent[answer.at] = answer._replace(upload=decode_upload(types.upload, answer.upload))
        else:
            self._done[answer.at] = answer._replace(state=decode(types.state, answer.state, OWN))
            del self._running[stream]
            self._dispatch()


def _connect(ray: Any, workers: int | None) -> None:
    """Join the cluster that the environment names, or start a Ray of this machine's, which ends with the run."""
    address = os.environ.get(ADDRESS, "")
    if "://" in address:
        raise AtollError(f"{ADDRESS}={address}: give HOST:PORT of the head, and start the run on one of the nodes.")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    with _own_signals():
        try:
            if address:
                ray.init(address=address, **quiet)
            else:
                ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as reason:
            raise AtollError(
                f"Cannot {'join the Ray cluster ' + address if address else 'start Ray'}: {reason}. "
                f"Check {ADDRESS}, and RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH, on this machine and on the nodes."
            ) from reason


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; a run has its own way to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- the method on its way --------------------------------------------------------------------------------------------


def package_method(method: AnyMethod) -> PackagedMethod:
    alone = [module for cls in reversed(type(method).__mro__) if _stands_alone(module := sys.modules[cls.__module__])]
    if "__main__" in (module.__name__ for module in alone):
        raise AtollError(
            f"{type(method).__name__} is defined in the script itself, which other machines do not have. "
            "Put it into a file of its own and import it, or give the file to --method."
        )
    sources = {module.__name__: inspect.getsource(module) for module in alone}
    return PackagedMethod(HERE, tuple(sources.items()), dumps(method))


def _stands_alone(module: ModuleType) -> bool:
    """A file of the user's; what belongs to a package has to be installed on all machines."""
    return not module.__package__ and module.__name__ not in sys.stdlib_module_names


def method_from(made: PackagedMethod) -> AnyMethod:
    if made.versions != HERE:
        raise AtollError(
            f"A node of the Ray cluster has {_told(HERE)}, and this machine {_told(made.versions)}. "
            "Install the same versions everywhere: others may give other numbers."
        )
    for name, source in made.sources:
        if name not in sys.modules:
            module = sys.modules[name] = ModuleType(name)
            exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    method: AnyMethod = loads(made.method)  # from the machine that runs us
    return method


def _told(versions: Versions) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions._asdict().items())


# -- on the nodes -----------------------------------------------------------------------------------------------------


def _task(order: WorkItem, references: list[Any]) -> Iterator[UploadReady | WorkDone]:
    """One client's job in a worker process of Ray."""
    shared, cooked, posted = references
    with one_thread(), kept_memory():
        method = _once("method", cooked, method_from)
        pool, upload_filter = _once("pool", shared, tuple)
        types = contract(method)
        download = _once("download", posted, lambda data: decode(types.download, data, OWN))
        state = None if order.state is None else decode(types.state, order.state, OWN)
        for answer in run_work_item(pool, upload_filter, order._replace(method=method, state=state), download):
            yield _encoded(answer)


def _encoded(answer: UploadReady | WorkDone) -> UploadReady | WorkDone:
    if isinstance(answer, UploadReady):
        return answer._replace(upload=encode(answer.upload))
    return answer._replace(state=encode(answer.state))


def _once(what: str, reference: Any, read: Any) -> Any:
    """What a reference stands for; the last one of each kind is kept, as the next task will want it too."""
    mark = reference.hex()
    if what not in _kept or _kept[what][0] != mark:
        _kept.pop(what, None)
        _kept[what] = mark, read(require().get(reference))
    return _kept[what][1]
