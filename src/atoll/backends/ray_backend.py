"""Run clients on a Ray cluster, as tasks that can be repeated on any machine.

The clients and the upload filter are put into Ray's object store once, and a worker process keeps what it has read. A
task is the job of one client without side effects, so the loss of a worker or of a node costs time and never a result.
Ray pickles everything but payloads: a person who can reach a cluster can run code on it, with or without Atoll.
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
from ..clients.failures import ClientFailure
from ..clients.model_store import ModelStore
from ..clients.pool import ClientPool
from ..clients.state_store import Store
from ..clients.tasks import UploadFilter, no_filter
from ..core.contract import contract
from ..core.method import AnyMethod
from ..core.serialization import OWN, Unreadable, decode, decode_upload, encode
from ..errors import AtollError
from ..utils.runtime import kept_memory, one_thread
from .remote import RemoteBackend, UploadReady, WorkDone, WorkItem, run_work_item

ADDRESS = "RAY_ADDRESS"  # environment variable with the address of a cluster, as Ray's own tools use it
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # With 0, a local Ray listens on 127.0.0.1 alone.

_cache: dict[str, tuple[str, Any]] = {}  # in a worker process: clients, method and last download, with their references


def require() -> Any:
    """Import Ray.

    Raises:
        AtollError: if Ray is not installed.
    """
    if find_spec("ray") is None:
        raise AtollError("--backend ray needs Ray, which is not installed. Install it with: pip install ray")
    if not os.environ.get(ADDRESS):
        os.environ.setdefault(LOOPBACK, "0")  # Ray reads the variable when it is imported.
    return importlib.import_module("ray")


class Versions(NamedTuple):
    """Versions that must be equal on all machines for bit-identical results."""

    atoll: str
    torch: str


HERE = Versions(__version__, torch.__version__)


class PackagedMethod(NamedTuple):
    """A method as it is sent to other machines, with the text of user files that these machines lack."""

    versions: Versions
    sources: tuple[tuple[str, str], ...]  # names and text of user files, base classes first
    method: bytes


class RayBackend(RemoteBackend):
    """Run clients as tasks of a Ray cluster.

    Args:
        pool: the clients with their data and models.
        store: states of clients.
        workers: largest number of tasks at a time; None for the number of processors of the cluster.
        upload_filter: applied to every upload before it leaves the client.
        fingerprints: compute fingerprints of uploads in the workers.
        models: keeps the personal models that are scored; None keeps none.
    """

    retries = 2

    def __init__(
        self,
        pool: ClientPool,
        store: Store,
        workers: int | None,
        upload_filter: UploadFilter = no_filter,
        fingerprints: bool = False,
        models: ModelStore | None = None,
    ):
        super().__init__(pool, store, upload_filter, fingerprints, models)
        self._ray = require()
        self._ours = not self._ray.is_initialized()  # False if the calling program has connected to Ray
        if self._ours:
            _connect(self._ray, workers)
        self._workers = workers
        self._shared = self._ray.put((pool, upload_filter))
        self._task = self._ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_task)
        self._packaged: tuple[AnyMethod, Any] | None = None  # a method, and the reference to its package
        self._posted: dict[int, Any] = {}  # references to downloads, by number
        self._running: dict[Any, WorkItem] = {}  # by the stream of answers

    def close(self) -> None:
        """Cancel running tasks, and stop Ray if this backend started or joined it. A joined cluster goes on."""
        for stream in self._running:
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(stream, force=True)
        self._running = {}
        if self._ours:
            self._ray.shutdown()

    def _dispatch(self) -> None:
        if not self._running:
            self._posted = {}  # Drop the downloads of earlier exchanges.
        most = self._workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        while self._orders and len(self._running) < most:
            order = self._orders.popleft()
            if order.download not in self._posted:
                self._posted[order.download] = self._ray.put(encode(order.data))
            state = None if order.state is None else encode(order.state)
            slim = order._replace(data=None, method=None, state=state)
            # Ray does not resolve references inside a list, so each process reads an object once and not for each task.
            references = [self._shared, self._package(order.method), self._posted[order.download]]
            self._running[self._task.remote(slim, references)] = order

    def _package(self, method: AnyMethod) -> Any:
        if self._packaged is None or self._packaged[0] is not method:
            self._packaged = method, self._ray.put(package_method(method))
        return self._packaged[1]

    def _collect(self) -> None:
        ready, _ = self._ray.wait(list(self._running), num_returns=1)
        for stream in ready:
            try:
                answer: UploadReady | WorkDone = self._ray.get(next(stream))
            except self._ray.exceptions.RayTaskError as error:  # An error of the client's code would happen again.
                raise error.cause from error
            except self._ray.exceptions.RayError as error:
                self._requeue(self._running.pop(stream), f"three Ray workers died under it ({type(error).__name__})")
                self._dispatch()
                continue
            self._take(stream, answer)

    def _take(self, stream: Any, answer: UploadReady | WorkDone) -> None:
        running = self._running[stream]
        types = contract(running.method)
        if isinstance(answer, UploadReady):
            kind = types.exchanges[running.job.round.exchange].upload
            sent = answer.upload
            self._sent[answer.at] = answer._replace(
                upload=decode_upload(kind, sent) if isinstance(sent, bytes) else sent
            )
        else:
            kept = answer.state
            self._done[answer.at] = answer._replace(
                state=decode(types.state, kept, OWN) if isinstance(kept, bytes) else kept
            )
            del self._running[stream]
            self._dispatch()


def _connect(ray: Any, workers: int | None) -> None:
    """Join the cluster in the environment variable, or start a local Ray that ends with the run."""
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
    """Restore the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- sending the method -----------------------------------------------------------------------------------------------


def package_method(method: AnyMethod) -> PackagedMethod:
    """Package a method for other machines.

    Raises:
        AtollError: if the method is defined in the main script.
    """
    alone = [module for cls in reversed(type(method).__mro__) if _stands_alone(module := sys.modules[cls.__module__])]
    if "__main__" in (module.__name__ for module in alone):
        raise AtollError(
            f"{type(method).__name__} is defined in the script itself, which other machines do not have. "
            "Put it into a file of its own and import it, or give the file to --method."
        )
    sources = {module.__name__: inspect.getsource(module) for module in alone}
    return PackagedMethod(HERE, tuple(sources.items()), dumps(method))


def _stands_alone(module: ModuleType) -> bool:
    """Return True for a user's file. Packages have to be installed on all machines."""
    return not module.__package__ and module.__name__ not in sys.stdlib_module_names


def method_from(made: PackagedMethod) -> AnyMethod:
    """Rebuild a method on a node of the cluster.

    Raises:
        AtollError: if the node has other versions of Atoll or torch.
    """
    if made.versions != HERE:
        raise AtollError(
            f"A node of the Ray cluster has {_to_text(HERE)}, and this machine {_to_text(made.versions)}. "
            "Install the same versions everywhere: other versions may give other results."
        )
    for name, source in made.sources:
        if name not in sys.modules:
            module = sys.modules[name] = ModuleType(name)
            exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    method: AnyMethod = loads(made.method)  # The bytes come from the machine that started the run.
    return method


def _to_text(versions: Versions) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions._asdict().items())


# -- on the nodes -----------------------------------------------------------------------------------------------------


def _task(order: WorkItem, references: list[Any]) -> Iterator[UploadReady | WorkDone]:
    """Run the job of one client in a worker process of Ray."""
    shared, packaged, posted = references
    with one_thread(), kept_memory():
        method = _read_once("method", packaged, method_from)
        pool, upload_filter = _read_once("pool", shared, tuple)
        types = contract(method)
        kind = types.exchanges[order.job.round.exchange].download
        download = _read_once("download", posted, lambda data: decode(kind, data, OWN))
        state = None if order.state is None else decode(types.state, order.state, OWN)
        for answer in run_work_item(pool, upload_filter, order._replace(method=method, state=state), download):
            yield _encode_answer(answer)


def _encode_answer(answer: UploadReady | WorkDone) -> UploadReady | WorkDone:
    """Encode the payload of an answer; what takes the place of a payload stays as it is."""
    if isinstance(answer, UploadReady):
        failed = isinstance(answer.upload, Unreadable | ClientFailure)
        return answer if failed else answer._replace(upload=encode(answer.upload))
    failed = answer.state is None or isinstance(answer.state, ClientFailure)
    return answer if failed else answer._replace(state=encode(answer.state))


def _read_once(kind: str, reference: Any, read: Any) -> Any:
    """Return the object of a reference. The last object of each kind is cached for the next task."""
    identity = reference.hex()
    if kind not in _cache or _cache[kind][0] != identity:
        _cache.pop(kind, None)
        _cache[kind] = identity, read(require().get(reference))
    return _cache[kind][1]
