"""The nouns of the framework: Batch, Model, Client, Task, Round, Reply, Method."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import signature
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from . import clientwise
from .errors import AtollError
from .key import Key, fold, permutation
from .layers import swift
from .mapping import mapping_clients
from .noise import key_dropout, noise
from .payload import Nothing, Params

ClientId = str
Predictor = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, Key], Tensor]
ServerT = TypeVar("ServerT")
StateT = TypeVar("StateT")
DownT = TypeVar("DownT")
UpT = TypeVar("UpT")

BUFFERS = "buffers."  # running statistics live in Params under this prefix
CHUNK = 256  # rows per forward pass outside training: larger ones only cost memory


class Batch(NamedTuple):
    """A mini-batch. A training-mode forward pass leaves the new running statistics in ``stats``."""

    x: Tensor
    y: Tensor
    w: Tensor  # 1 for a real example, 0 for padding
    k: Key  # for dropout
    stats: Params  # filled by Model.step, read by the training loop
    extra: Mapping[str, Any] = {}  # what else a method hands to its own loss
    full: bool = False  # whether it is known that all examples are real


class Step(NamedTuple):
    """One training-mode forward pass, shared by all terms of an objective."""

    params: Params
    batch: Batch
    features: Tensor
    logits: Tensor


class Model:
    """An ``nn.Module`` as pure functions of its params; with a ``body`` and a ``head``, except for proxies.

    Calling it is evaluation (running statistics, no dropout); only :meth:`step` trains.
    """

    def __init__(self, net: nn.Module, name: str = "model", vectorisable: bool = True):
        self.name = name
        self.vectorisable = vectorisable
        self.net = swift(key_dropout(copy.deepcopy(net))).requires_grad_(False).eval()
        self._training = copy.deepcopy(self.net).train()
        self.has_buffers = any(True for _ in net.buffers())
        # How images and kernels lie in memory while the net runs; with convolutions, found out when it first runs.
        convolves = any(isinstance(m, nn.Conv2d) for m in net.modules())
        self._layout = None if convolves else torch.contiguous_format
        self._parts: dict[tuple[str, bool], _Part] = {}

    def init(self) -> Params:
        """Fresh copies of the initial values, buffers included."""
        params = {name: v.clone() for name, v in self.net.named_parameters()}
        return params | {BUFFERS + name: v.clone() for name, v in self.net.named_buffers()}

    def to(self, device: str) -> None:
        """Move the model, before it is first run."""
        self.net.to(device)
        self._training.to(device)

    @property
    def feature_dim(self) -> int:
        return int(self.net.get_submodule("head").in_features)  # type: ignore[arg-type]

    def features(self, params: Params, x: Tensor) -> Tensor:
        return _chunked(lambda rows: self._call("body", params, rows), x)

    def classify(self, params: Params, h: Tensor) -> Tensor:
        return self._call("head", params, h)

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        return _chunked(lambda rows: self._call("", params, rows), x)

    def step(self, params: Params, batch: Batch) -> Step:
        """Forward pass in training mode: batch statistics, dropout drawn from the batch's key."""
        stats: Params = {}
        if self.has_buffers:
            stats = {name: v.clone() for name, v in params.items() if name.startswith(BUFFERS)}
        fresh = params | stats if stats else params
        with noise(batch.k):
            h = self._call("body", fresh, batch.x, training=True)
            logits = self._call("head", fresh, h, training=True)
        batch.stats.update(stats)
        return Step(params, batch, h, logits)

    def _part(self, child: str, training: bool) -> "_Part":
        if (child, training) not in self._parts:
            self._parts[child, training] = _Part(self._training if training else self.net, child)
        return self._parts[child, training]

    def _call(self, child: str, params: Params, x: Tensor, training: bool = False) -> Tensor:
        """In the model's layout, whatever layout the arguments have: it shows in the last bits of a convolution."""
        run = self._part(child, training)
        if mapping_clients():  # a batched image has five dimensions, which know no such layout
            return run(params, x)
        if child != "head":
            self._layout = self._layout or self._tried(child, params, x)
            return run(params, laid(x, self._layout), self._layout)
        return run(params, x)

    def _tried(self, child: str, params: Params, x: Tensor) -> torch.memory_format:
        """Channels last, which convolutions prefer, unless the net takes views that want its images to lie plainly."""
        last = torch.channels_last
        try:
            with torch.no_grad():
                self._part(child, training=False)(params, laid(x.new_zeros(2, *x.shape[1:]), last), last)
        except RuntimeError:
            return torch.contiguous_format
        return last


class _Part:
    """A child of a network that is run with given tensors in the place of its own.

    As ``torch.func.functional_call`` does, but the places are found once, not at every call.
    """

    def __init__(self, net: nn.Module, child: str):
        names = {id(v): name for name, v in net.named_parameters()}
        names |= {id(v): BUFFERS + name for name, v in net.named_buffers()}
        self._module = net.get_submodule(child)
        self._places = [  # a tensor that several modules share has several
            (kept, key, v, names[id(v)])
            for module in self._module.modules()
            for kept in (module._parameters, module._buffers)
            for key, v in kept.items()
            if v is not None
        ]

    def __call__(self, params: Params, x: Tensor, layout: torch.memory_format | None = None) -> Tensor:
        for kept, key, v, name in self._places:
            given = params.get(name, v)
            kept[key] = given if layout is None else laid(given, layout)  # type: ignore[assignment]
        try:
            out: Tensor = self._module(x)
        finally:
            for kept, key, v, _ in self._places:
                kept[key] = v  # type: ignore[assignment]
        return out


def laid(v: Tensor, layout: torch.memory_format) -> Tensor:
    """An image or a kernel in a layout; other tensors have only one."""
    return v.to(memory_format=layout) if v.ndim == 4 else v


def _chunked(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return f(x) if len(x) <= CHUNK else torch.cat([f(rows) for rows in x.split(CHUNK)])


def part(params: Params, child: str) -> Params:
    """The params of one child ("body", "head"), its buffers included, under their full names."""
    starts = (f"{child}.", f"{BUFFERS}{child}.")
    return {name: v for name, v in params.items() if name.startswith(starts)}


def weights(params: Params) -> Params:
    """The params without buffers: what training moves and penalties measure."""
    return {name: v for name, v in params.items() if not name.startswith(BUFFERS)}


@dataclass(frozen=True)
class Client:
    """What a method may read on a client. Nothing here leaves it except through an upload."""

    x: Tensor
    y: Tensor
    n: Tensor  # number of real examples; rows past it are padding
    model: Model
    num_classes: int
    proxy: Model | None = None  # what travels in place of the client's own model, if the method has such a thing
    public: Tensor | None = None
    augment: Augment | None = None
    bound: float | None = None  # largest norm of a row's features in statistics that leave; None: any

    def features(self, params: Params) -> Tensor:
        """Features of the client's own rows for statistics that leave it, none of them longer than ``bound``."""
        z = self.model.features(params, self.x)
        if self.bound is None:
            return z
        norms: Tensor = z.norm(dim=1, keepdim=True)
        return z * (self.bound / norms.clamp(min=self.bound))

    def batches(self, k: Key, epochs: int, size: int) -> Iterator[Batch]:
        """Shuffled, augmented batches; their order is a function of the key alone."""
        sizes = self._sizes(size)
        full = not mapping_clients() and float(self.n) == len(self.x)
        for epoch in range(epochs):
            for chosen, w, k_drop, k_change in clientwise.whole(partial(_drawn, epoch, sizes), k, self.n):
                x, y = clientwise.take([self.x, self.y], chosen)
                yield Batch(x if self.augment is None else self.augment(x, k_change), y, w, k_drop, {}, full=full)

    def _sizes(self, size: int) -> list[int]:
        """Batches of ``size``, the last one shorter; with batch statistics, never of one row, which has no variance."""
        n = len(self.x)
        sizes = [min(size, n - start) for start in range(0, n, size)]
        if self.has_buffers and size > 1 and n > 1 and sizes[-1] == 1:
            sizes[-2:] = [size - 1, 2] if size > 2 else [size + 1]
        return sizes

    @property
    def has_buffers(self) -> bool:
        """Whether batches have statistics that somebody keeps: its own model, or the one that travels."""
        return self.model.has_buffers or (self.proxy is not None and self.proxy.has_buffers)

    def members(self) -> Tensor:
        """One-hot labels [N, C]; padding rows are zero."""
        real = torch.arange(len(self.y), device=self.y.device) < self.n
        classes = torch.arange(self.num_classes, device=self.y.device)
        return ((self.y[:, None] == classes) & real[:, None]).float()


def _drawn(epoch: int, sizes: list[int], k: Key, n: Tensor) -> list[tuple[Tensor, Tensor, Key, Key]]:
    """The batches of an epoch: which rows, which of them are real, keys for dropout and for what changes the rows.

    All at once and by arrays: for so few numbers, torch would take several times as long.
    """
    arrays = [v.reshape(-1).cpu().numpy() for v in (k, n)]
    order, others = fold(fold(arrays[0], epoch), np.arange(2)).T
    chosen = permutation(order, sum(sizes), arrays[1])
    real = (chosen < arrays[1][:, None]).astype(np.float32)
    made = chosen, real, fold(others, np.arange(2 * len(sizes)))
    rows, w, own = (torch.from_numpy(v).to(k.device).view(*k.shape, -1) for v in made)
    keys = own.unbind(-1)
    return list(zip(rows.split(sizes, -1), w.split(sizes, -1), keys[::2], keys[1::2], strict=True))


pytree.register_pytree_node(
    Client,
    lambda c: ([c.x, c.y, c.n], (c.model, c.num_classes, c.proxy, c.public, c.augment, c.bound)),
    lambda leaves, static: Client(*leaves, *static),
)


@dataclass(frozen=True)
class Task:
    """What the server knows: architectures and public data, never private data."""

    model: Model
    num_classes: int
    clients: tuple[ClientId, ...] = ()
    proxy: Model | None = None
    public: Tensor | None = None
    models: Mapping[ClientId, Model] = field(default_factory=dict)  # who has which architecture
    tutors: Mapping[ClientId, Model] = field(default_factory=dict)  # the server's own model for each client, if needed

    @property
    def feature_dim(self) -> int:
        return self.model.feature_dim


class Round(NamedTuple):
    t: int
    phase: int = 0  # methods with several exchanges per round count them here


class Reply(NamedTuple, Generic[UpT]):
    sender: ClientId
    upload: UpT


class Need:
    """What a method asks of a federation; checked before anything runs."""

    SAME_ARCHITECTURE = "same architecture"
    SAME_WIDTH = "same feature width"
    PUBLIC_DATA = "public data"
    PROXY = "proxy model"
    SHARED_MODEL = "shared model"
    TUTORS = "server models"


class Method(Generic[ServerT, StateT, DownT, UpT]):
    """A federated method: hyper-parameters as fields, no other attributes, pure functions.

    Subclasses are frozen dataclasses; the annotations of ``local`` are the wire contract.
    """

    phases: ClassVar[int] = 1
    family: ClassVar[str] = "weights"
    needs: ClassVar[frozenset[str]] = frozenset()
    vectorisable: ClassVar[bool] = True  # whether vmap can run ``local`` for many clients at once
    varying_bytes: ClassVar[bool] = False  # whether the size of a message depends on what was learnt
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # ablations: name -> fields that differ

    # What differential privacy has to know. Whether all that is uploaded are counts and moments, by class, of
    # ``client.features``; whether it is a function of weights that ``optim`` trained and of the number of rows (said
    # by each class for itself: a method built on another may send more).
    bounded_statistics: ClassVar[bool] = False
    private_training: ClassVar[bool] = False

    # What the server does with uploads. These declarations hold for the ``aggregate`` and the ``serve`` that they are
    # written beside (see ``declared``): a subclass that overrides one of these functions repeats what is still true.
    guards: ClassVar[tuple[str, ...]] = ()  # fields given to ``mean`` whose average --robust may replace by its rule
    as_sent: ClassVar[str | None] = None  # what the server uses of single uploads besides: told under --robust
    sums_uploads: ClassVar[bool] = False  # the server works from sums of uploads alone and reads no single upload
    not_a_sum: ClassVar[str | None] = None  # why not, for users who ask for --sums fixed

    def init_server(self, task: Task, k: Key) -> ServerT:
        raise NotImplementedError

    def init_client(self, client: Client, k: Key) -> StateT:
        return Nothing()  # type: ignore[return-value]

    def broadcast(self, server: ServerT, to: ClientId, task: Task, r: Round) -> DownT:
        raise NotImplementedError

    def local(self, down: DownT, state: StateT, client: Client, k: Key) -> tuple[UpT, StateT]:
        raise NotImplementedError

    def aggregate(self, server: ServerT, replies: Iterable[Reply[UpT]], task: Task, r: Round, k: Key) -> ServerT:
        raise NotImplementedError

    def own(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Params:
        """The params of the client's own model: before training (``up`` is None) or after it."""
        raise NotImplementedError

    def personal(self, down: DownT, up: UpT | None, state: StateT, client: Client) -> Predictor:
        """How the client predicts; overridden where that is not by its own model alone."""
        params = self.own(down, up, state, client)
        return lambda x: client.model(params, x)

    def generic(self, server: ServerT, task: Task) -> Predictor | None:
        """The server's model, if the method has one."""
        return None

    # A server that keeps a state of its own for every client (a model, say) sets this, and its downloads come from
    # ``answer`` instead of ``broadcast``. Only the desk in use is in memory.
    keeps_desks: ClassVar[bool] = False

    def init_desk(self, task: Task, of: ClientId, k: Key) -> Any:
        """What the server keeps for a client at first."""
        raise NotImplementedError

    def answer(self, server: ServerT, desk: Any, to: ClientId, task: Task, r: Round) -> DownT:
        """What a client receives, given its desk."""
        raise NotImplementedError

    def serve(self, server: ServerT, desk: Any, reply: Reply[UpT], task: Task, r: Round, k: Key) -> tuple[Any, Any]:
        """The server's own work for one client: what ``aggregate`` gets in place of the upload, and the next desk."""
        raise NotImplementedError

    # With which settings the method uploads before its personal training; None: it has none that could wait.
    wait_free: ClassVar[Mapping[str, Any] | None] = None

    # Optional: (down, up, state, client, k) -> state, done while the upload is under way. ``k`` is that of ``local``.
    after_upload: ClassVar[Callable[..., Any] | None] = None

    # Optional: (server, client, k) -> state, the method's own rule for a client that comes after the run. Without it, a
    # newcomer does what any client does in a round.
    adapt: ClassVar[Callable[..., Any] | None] = None

    def closed(self) -> str | None:
        """Why a client that comes after the run can learn nothing from what the server has left, if so."""
        return None

    def bias_free(self) -> bool:
        """Whether the models' heads must have no bias."""
        return False

    def degenerate(self) -> str | None:
        """A sentence if these hyper-parameters turn the method into a simpler one."""
        return None


def declared(cls: type[Method[Any, Any, Any, Any]], name: str) -> Any:
    """Return what a class declares about its server under ``name``, or the default of ``Method``.

    A declaration counts only if its class also provides ``aggregate`` and ``serve``, or inherits both. Otherwise a
    subclass has replaced the function that the declaration was written for, and may do something else with uploads.
    """
    source = _provider(cls, name)
    holds = all(issubclass(source, _provider(cls, function)) for function in ("aggregate", "serve"))
    return vars(source if holds else Method)[name]


def _provider(cls: type[Any], name: str) -> type[Any]:
    """Return the class from which ``cls`` has the attribute ``name``."""
    return next(base for base in cls.__mro__ if name in vars(base))


class Contract(NamedTuple):
    download: type[Any]
    upload: type[Any]
    state: type[Any]
    server: type[Any]
    desk: type[Any] = Nothing


def contract(method: Method[Any, Any, Any, Any]) -> Contract:
    """Read the payload types off the annotations of ``local``, ``init_server`` and ``init_desk``."""
    return _contract(type(method))  # type: ignore[arg-type]  # a class is hashable, whatever its own objects are


@cache
def _contract(kind: type[Any]) -> Contract:
    hints = get_type_hints(kind.local)
    roles = [hints.get(name) for name in signature(kind.local).parameters]  # by position: self, download, state, ...
    server = get_type_hints(kind.init_server).get("return")
    desk = get_type_hints(kind.init_desk).get("return") if kind.keeps_desks else Nothing
    declared = [*roles[1:2], *get_args(hints.get("return")), server, desk]
    if len(declared) != 5 or not all(isinstance(cls, type) for cls in declared):
        raise TypeError(
            f"{kind.__name__}: annotate local(down: Down, state: State, ...) -> tuple[Up, State] and "
            "init_server(...) -> Server with payload classes: they say what may travel."
        )
    return Contract(*declared)


def check_functions(kind: type[Any], where: str) -> None:
    """Raise an AtollError that names the functions a method class has to define and does not."""
    sends = ("init_desk", "answer", "serve") if kind.keeps_desks else ("broadcast",)
    predicts = ("own",) if kind.personal is Method.personal else ()
    needed = ("init_server", *sends, "local", "aggregate", *predicts)
    missing = [name for name in needed if getattr(kind, name) is getattr(Method, name)]
    if missing:
        raise AtollError(f"{where} does not define {', '.join(missing)}. A method needs {', '.join(needed)}.")


def setting(default: Any, meaning: str, source: str) -> Any:
    """A hyper-parameter: its default, what it does, and where the default comes from."""
    return field(default=default, metadata={"about": meaning, "source": source})
