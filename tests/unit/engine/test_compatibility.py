"""Refusals before anything runs."""

from typing import Any

import pytest

from atoll.config import Config
from atoll.core.method import traits_of
from atoll.core.task import Round
from atoll.core.traits import Need, Reads, Traits
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
    needs = traits_of(_registry.method(name)).needs
    models = [f"mlp:hidden={n}{'&norm=true' if Need.BATCH_NORM in needs else ''}" for n in (8, 16)]
    mixed = {"models": tuple(models), "width": 8, "public": 50}
    if Need.SAME_ARCHITECTURE in needs:
        message = said(name, **mixed)
        assert f"For {name}, all clients need one architecture" in message
        assert ", ".join(models) in message
        assert "local" in message.rpartition(":")[2]  # a method that would run
    else:
        build_setup(Config(name, **SMALL, **mixed))


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_compare_features_want_one_width(name: str) -> None:
    needs = traits_of(_registry.method(name)).needs
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
    traits = Traits(needs=frozenset({Need.PUBLIC_DATA}))


def test_distillation_wants_public_data() -> None:
    config = Config("distilling", **SMALL)
    with pytest.raises(AtollError, match=r"none\. Add --public 1000"):
        build_setup(config, method=Distilling())
    build_setup(Config("distilling", **SMALL, public=100), method=Distilling())


# -- promises hold for the class that makes them -----------------------------------------------------------------------


class Trained(FedAvg):
    def client_update(self, down: Any, state: Any, client: Any, r: Round, k: Any) -> Any:
        return super().client_update(down, state, client, r, k)


class Aggregated(FedAvg):
    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        return super().aggregate(server, replies, task, r, k)


class Repeated(Aggregated):
    traits = FedAvg.traits


class Inherited(Repeated):
    pass


@pytest.mark.parametrize("cls", [Trained, Aggregated, Inherited])
def test_subclass_without_traits_inherits_no_promises(cls: type[FedAvg]) -> None:
    traits = traits_of(cls)

    assert (traits.guards, traits.server_reads, traits.private_training) == ((), Reads.UPLOADS, False)
    assert (traits.family, traits.needs) == (FedAvg.traits.family, FedAvg.traits.needs)


@pytest.mark.parametrize("cls", [FedAvg, FedAvgM, Repeated])
def test_promises_hold_for_the_class_that_states_them(cls: type[FedAvg]) -> None:
    assert traits_of(cls).guards == ("params",)
    assert traits_of(cls()).server_reads is Reads.SUMS


class Pooled(FedFed):
    pass


def test_reasons_for_single_uploads_are_not_inherited() -> None:
    assert traits_of(FedFed).as_sent
    assert traits_of(Pooled).as_sent is None
    assert traits_of(Pooled).why_uploads is None


@pytest.mark.parametrize("options", [{"robust": "median"}, {"sums": "fixed"}])
def test_option_that_relies_on_a_missing_promise_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(AtollError, match="declare this in the `traits` of the class itself"):
        build_setup(Config("mine", **SMALL, **options), method=Aggregated())
    build_setup(Config("mine", **SMALL, **options), method=Repeated())
