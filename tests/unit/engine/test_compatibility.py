"""Refusals before anything runs."""

from typing import Any

import pytest

from atoll.config import Config
from atoll.core.method import Need, declared
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods.fedavg import FedAvg
from atoll.methods.fedavgm import FedAvgM
from atoll.methods.fedfed import FedFed

METHODS = sorted(_registry.methods())
SMALL: dict[str, Any] = {"clients": 3, "partition": "iid"}


def said(method: str, **options: Any) -> str:
    with pytest.raises(AtollError) as caught:
        build_setup(Config(method, **SMALL, **options))
    return str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_share_whole_models_want_one_architecture(name: str) -> None:
    mixed = {"models": ("mlp:hidden=8", "mlp:hidden=16"), "width": 8, "public": 50}
    if Need.SAME_ARCHITECTURE in _registry.method(name).needs:
        message = said(name, **mixed)
        assert f"{name} shares whole models" in message
        assert "mlp:hidden=8, mlp:hidden=16" in message
        assert "local" in message.rpartition(":")[2]  # a method that would run
    else:
        build_setup(Config(name, **SMALL, **mixed))


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_compare_features_want_one_width(name: str) -> None:
    needs = _registry.method(name).needs
    mixed = {"models": ("mlp:hidden=8", "mlp:hidden=16"), "public": 50}
    if Need.SAME_ARCHITECTURE in needs:
        return
    if Need.SAME_WIDTH in needs:
        message = said(name, **mixed)
        assert "mlp:hidden=8 8, mlp:hidden=16 16" in message
        assert "--width 8" in message
        build_setup(Config(name, **SMALL, **mixed, width=8))  # the remedy works
    else:
        build_setup(Config(name, **SMALL, **mixed))


def test_the_same_architecture_twice_is_one() -> None:
    build_setup(Config("fedavg", **SMALL, models=("mlp", "mlp")))


def test_architectures_that_no_client_has_do_not_count() -> None:
    """One client takes the first model; the second is never built."""
    build_setup(Config("fedavg", clients=1, partition="iid", models=("mlp", "linear")))


class Distilling(FedAvg):
    needs = frozenset({Need.PUBLIC_DATA})


def test_distillation_wants_public_data() -> None:
    config = Config("distilling", **SMALL)
    with pytest.raises(AtollError, match=r"none\. Add --public 1000"):
        build_setup(config, method=Distilling())
    build_setup(Config("distilling", **SMALL, public=100), method=Distilling())


# -- declarations about servers hold for the functions that they were written beside ----------------------------------


class Trained(FedAvg):
    def local(self, down: Any, state: Any, client: Any, k: Any) -> Any:
        return super().local(down, state, client, k)


class Aggregated(FedAvg):
    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        return super().aggregate(server, replies, task, r, k)


class Served(FedAvg):
    def serve_client(self, server: Any, per_client: Any, reply: Any, task: Any, r: Any, k: Any) -> Any:
        return reply.upload, per_client


class Repeated(Aggregated):
    guards = ("params",)
    sums_uploads = True


class Replaced(Repeated):
    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        return server


class Mixin:
    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        return server


class Mixed(Mixin, FedAvg):
    pass


@pytest.mark.parametrize(
    ("cls", "holds"),
    [
        (FedAvg, True),
        (FedAvgM, True),  # overrides aggregate, and repeats the declarations
        (Trained, True),
        (Aggregated, False),
        (Served, False),
        (Repeated, True),
        (Replaced, False),
        (Mixed, False),
    ],
)
def test_declaration_ends_where_a_subclass_overrides_the_server(cls: Any, holds: bool) -> None:
    assert declared(cls, "guards") == (("params",) if holds else ())
    assert declared(cls, "sums_uploads") is holds


class Pooled(FedFed):
    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        return server


def test_declared_reasons_are_not_inherited_by_overriding_subclass() -> None:
    assert declared(FedFed, "as_sent")
    assert declared(Pooled, "as_sent") is None
    assert declared(Pooled, "not_a_sum") is None


@pytest.mark.parametrize("options", [{"robust": "median"}, {"sums": "fixed"}])
def test_overridden_aggregate_without_declaration_is_refused(options: dict[str, str]) -> None:
    for cls in (Aggregated, Served):
        with pytest.raises(AtollError, match="again in every subclass with an `aggregate` or `serve` of its own"):
            build_setup(Config("mine", **SMALL, **options), method=cls())
    build_setup(Config("mine", **SMALL, **options), method=Repeated())
