"""Describe a personal model as it was when it was scored, and build it again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..core.client import Client
from ..core.contract import Contract
from ..core.hooks import PredictsOtherwise
from ..core.method import AnyMethod
from ..core.model import Predictor
from ..core.payloads import Params, Payload, nbytes, payload
from ..core.schema import tensors_of
from ..core.tree import map_tree
from . import method_calls

STATE, PARAMS, SOURCE = "state", "params", "source"  # kinds of measured models


@payload
class ModelParams:
    """The weights of a personal model."""

    params: Params


class ModelSource(NamedTuple):
    """The payloads that determine the personal model of a client, and the client."""

    download: Payload
    upload: Payload | None
    state: Payload
    client: Client


class PersonalModel(NamedTuple):
    """A personal model, ready for use.

    Args:
        predictor: prepared rows to outputs.
        params: weights of the client's own model.
    """

    predictor: Predictor
    params: Params


@dataclass(eq=False)
class MeasuredModel:
    """The payloads that determine a personal model, as they were when the model was scored.

    Without ``payloads``, ``files`` and ``objects``, the payload is the client's state in the store of states.

    Args:
        kind: ``state`` if the client's state holds all weights, ``params`` for the weights themselves, ``source`` for
            download, upload and state of a method that predicts by more than one model.
        layout: for ``state``, the tensor of the state that is each weight.
        payloads: the payloads, if they are in memory.
        files: temporary files that hold the payloads.
        objects: names of the payloads among the objects of the run directory.
    """

    kind: str
    layout: Mapping[str, str] = field(default_factory=dict)
    payloads: tuple[Any, ...] | None = None
    files: tuple[Path | None, ...] | None = None
    objects: tuple[str | None, ...] | None = None

    @property
    def size(self) -> int:
        """Return the bytes of the payloads that are in memory."""
        return sum(nbytes(part) for part in self.payloads or () if part is not None)

    @property
    def is_in_store(self) -> bool:
        """Return True if the model is nowhere but in the store of client states."""
        return self.payloads is None and self.files is None and self.objects is None

    def classes(self, types: Contract) -> tuple[Any, ...]:
        """Return the class of each payload.

        Args:
            types: payload classes of the method.
        """
        if self.kind == STATE:
            return (types.state,)
        if self.kind == PARAMS:
            return (ModelParams,)
        has_upload = (self.objects or self.files or self.payloads or ())[1] is not None
        messages = types.exchanges[-1 if has_upload else 0]  # Without an upload, only the first download was made.
        return messages.download, messages.upload, types.state


def describe_model(method: AnyMethod, source: ModelSource) -> MeasuredModel:
    """Describe the personal model that follows from a client's messages and state."""
    if isinstance(method, PredictsOtherwise):
        return MeasuredModel(SOURCE, payloads=(_compact(source.download), _compact(source.upload), source.state))
    own = method.personal_params(*source)
    layout = _layout_in_state(own, source.state)
    return MeasuredModel(STATE, layout) if layout else MeasuredModel(PARAMS, payloads=(ModelParams(_compact(own)),))


def is_in_state(method: AnyMethod, source: ModelSource) -> bool:
    """Return True if the client's state holds all weights of the personal model, so that no download can change it."""
    if isinstance(method, PredictsOtherwise) or not tensors_of(source.state):
        return False
    return bool(_layout_in_state(method.personal_params(*source), source.state))


def _layout_in_state(params: Params, state: Payload) -> dict[str, str]:
    """Return the tensor of a state that is each weight; nothing if the state lacks one of them."""
    held = {id(v): name for name, v in tensors_of(state).items()}
    return {name: held[id(v)] for name, v in params.items()} if all(id(v) in held for v in params.values()) else {}


def rebuild_model(method: AnyMethod, model: MeasuredModel, payloads: tuple[Any, ...], client: Client) -> PersonalModel:
    """Build a measured model from its payloads."""
    if model.kind == SOURCE:
        download, upload, state = payloads
        return model_from_source(method, ModelSource(download, upload, state, client))
    if model.kind == STATE:
        tensors = tensors_of(payloads[0])
        params = {name: tensors[at] for name, at in model.layout.items()}
    else:
        params = payloads[0].params
    return PersonalModel(client.predictor(params), params)


def model_from_source(method: AnyMethod, source: ModelSource) -> PersonalModel:
    """Build the personal model that follows from a client's messages and state."""
    return PersonalModel(method_calls.personal_predictor(method, *source), method.personal_params(*source))


def _compact(tree: Any) -> Any:
    """Copy tensors that are views of larger ones, which would stay in memory as a whole."""

    def copied(v: Any) -> Any:
        return v.clone() if isinstance(v, Tensor) and v.untyped_storage().nbytes() > v.nbytes else v

    return map_tree(copied, tree)
