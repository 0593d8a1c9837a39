"""Refusals before anything runs."""

from typing import Any

import pytest

from atoll import registry
from atoll.assemble import assemble
from atoll.config import Config
from atoll.core import Need
from atoll.errors import AtollError
from atoll.methods.fedavg import FedAvg

METHODS = sorted(registry.methods())
SMALL: dict[str, Any] = {"clients": 3, "partition": "iid"}


def said(method: str, **options: Any) -> str:
    with pytest.raises(AtollError) as caught:
        assemble(Config(method, **SMALL, **options))
    return str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_share_whole_models_want_one_architecture(name: str) -> None:
    mixed = {"models": ("mlp:hidden=8", "mlp:hidden=16"), "width": 8, "public": 50}
    if Need.SAME_ARCHITECTURE in registry.method(name).needs:
        message = said(name, **mixed)
        assert f"{name} shares whole models" in message
        assert "mlp:hidden=8, mlp:hidden=16" in message
        assert "local" in message.rpartition(":")[2]  # a method that would run
    else:
        assemble(Config(name, **SMALL, **mixed))


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_compare_features_want_one_width(name: str) -> None:
    needs = registry.method(name).needs
    mixed = {"models": ("mlp:hidden=8", "mlp:hidden=16"), "public": 50}
    if Need.SAME_ARCHITECTURE in needs:
        return
    if Need.SAME_WIDTH in needs:
        message = said(name, **mixed)
        assert "mlp:hidden=8 8, mlp:hidden=16 16" in message
        assert "--width 8" in message
        assemble(Config(name, **SMALL, **mixed, width=8))  # the remedy works
    else:
        assemble(Config(name, **SMALL, **mixed))


def test_the_same_architecture_twice_is_one() -> None:
    assemble(Config("fedavg", **SMALL, models=("mlp", "mlp")))


def test_architectures_that_no_client_has_do_not_count() -> None:
    """One client takes the first model; the second is never built."""
    assemble(Config("fedavg", clients=1, partition="iid", models=("mlp", "linear")))


class Distilling(FedAvg):
    needs = frozenset({Need.PUBLIC_DATA})


def test_distillation_wants_public_data() -> None:
    config = Config("distilling", **SMALL)
    with pytest.raises(AtollError, match=r"none\. Add --public 1000"):
        assemble(config, method=Distilling())
    assemble(Config("distilling", **SMALL, public=100), method=Distilling())
