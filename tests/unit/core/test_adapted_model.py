"""Low-rank adapters as models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.analysis.laws import Trial, execution, trial_of
from atoll.core import SGD, Batch, Client, key, nbytes, part
from atoll.core.adapted_model import AdaptedModel, LowRank, parse_adapter
from atoll.core.model import Model
from atoll.core.problems import Classes
from atoll.errors import AtollError
from atoll.inference.models import open_run
from atoll.methods import _registry
from atoll.methods.fedavg import Global
from atoll.models.body_and_head import Net
from benchmarks.digests import short_options

SMALL = {"rows": 300, "clients": 4, "rounds": 2, "epochs": 1, "backend": "loop"}


def network(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), nn.Linear(3, 2))


def adapted(adapter: str = "lora:2", **values: Any) -> AdaptedModel:
    return AdaptedModel(network(**values), "small", adapter, key(1))


def test_params_are_adapters_of_the_body_and_the_whole_head() -> None:
    params = adapted().init()

    # A [rank, inputs] = [2, 4] and B [outputs, rank] = [3, 2] for the body; the bias of the body stays as it is.
    assert {name: tuple(v.shape) for name, v in params.items()} == {
        "body.0.weight.lora_a": (2, 4),
        "body.0.weight.lora_b": (3, 2),
        "head.weight": (2, 3),
        "head.bias": (2,),
    }


def test_bytes_of_a_message_follow_from_the_rank() -> None:
    # 4 bytes each for A (2 * 4), B (3 * 2), head weights (2 * 3) and head biases (2): 4 * (8 + 6 + 6 + 2) = 88.
    assert nbytes(Global(adapted().init(), {})) == 88
    # With rank 1: 4 * (4 + 3 + 6 + 2) = 60. The whole model: 4 * (4 * 3 + 3 + 6 + 2) = 92.
    assert nbytes(Global(adapted("lora:1").init(), {})) == 60
    assert nbytes(Global(Model(network()).init(), {})) == 92


def test_first_adapters_leave_the_network_as_it_is() -> None:
    model, x = adapted(), torch.randn(5, 4)

    assert torch.equal(model(model.init(), x), network()(x))


def test_adapted_matrix_is_base_plus_scaled_product() -> None:
    model = adapted("lora:1:3")
    params = model.init()
    params["body.0.weight.lora_a"] = torch.tensor([[1.0, 0.0, 2.0, 0.0]])
    params["body.0.weight.lora_b"] = torch.tensor([[1.0], [0.0], [-1.0]])

    found = model.network_params(params)["body.0.weight"] - network().body[0].weight

    # alpha / rank = 3; B A has the rows (1, 0, 2, 0), 0 and (-1, 0, -2, 0).
    wanted = torch.tensor([[3.0, 0, 6, 0], [0, 0, 0, 0], [-3, 0, -6, 0]])
    assert torch.allclose(found, wanted, atol=1e-6)


def test_kernels_are_adapted_as_matrices_of_outputs_by_inputs() -> None:
    net = Net(nn.Sequential(nn.Conv2d(2, 5, 3), nn.Flatten()), nn.Linear(5, 2))
    model = AdaptedModel(net, "conv", "lora:4", key(0))
    params = model.init()

    # A has 2 channels * 3 * 3 = 18 inputs.
    assert tuple(params["body.0.weight.lora_a"].shape) == (4, 18)
    assert tuple(params["body.0.weight.lora_b"].shape) == (5, 4)
    assert model.network_params(params)["body.0.weight"].shape == net.body[0].weight.shape


def test_rank_above_the_sides_of_a_matrix_is_cut_to_them() -> None:
    # The body is 3 by 4, so that rank 3 can express every change.
    assert tuple(adapted("lora:64").init()["body.0.weight.lora_a"].shape) == (3, 4)


def test_step_gives_terms_the_adapters_and_not_the_merged_weights() -> None:
    model = adapted()
    params = model.init()
    batch = Batch(torch.randn(5, 4), torch.zeros(5).long(), torch.ones(5), key(0), {}, full=True)

    assert model.step(params, batch).params.keys() == params.keys()


def test_training_changes_adapters_and_head_alone() -> None:
    model = adapted()
    base = {name: v.clone() for name, v in model.net.named_parameters()}
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    client = Client(x=x, y=y, n=torch.tensor(20.0), model=model, problem=Classes(2))

    trained = SGD(lr=0.1, epochs=2).fit(client.objective(), model.init(), client, key(0))

    assert all(torch.equal(v, base[name]) for name, v in model.net.named_parameters())
    assert not torch.equal(trained["body.0.weight.lora_b"], torch.zeros(3, 2))
    assert not torch.equal(trained["head.weight"], part(model.init(), "head")["head.weight"])


@pytest.mark.parametrize(("text", "wanted"), [("lora:4", LowRank(4, 1.0)), ("lora:4:8", LowRank(4, 2.0))])
def test_adapter_is_parsed(text: str, wanted: LowRank) -> None:
    assert parse_adapter(text) == wanted


@pytest.mark.parametrize("text", ["lora", "lora:0", "lora:x", "lora:4:0", "prefix:3"])
def test_malformed_adapter_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(AtollError, match="Write lora:RANK"):
        parse_adapter(text)


def test_body_without_weight_matrix_is_refused() -> None:
    with pytest.raises(AtollError, match="no weight matrix"):
        atoll.run("fedavg", models=["linear"], adapter="lora:2", **SMALL)


def test_adapters_are_assigned_to_clients_in_turn_as_heterogeneous_models() -> None:
    result = atoll.run("fedproto", models=["mlp"], adapter="lora:2,lora:4", **SMALL)

    names = [result.pool.models[i].name for i in result.pool.ids]
    assert names == ["mlp+lora:2", "mlp+lora:4", "mlp+lora:2", "mlp+lora:4"]
    assert result.setup.config.models == ("mlp",)


def test_method_that_averages_refuses_unequal_ranks() -> None:
    with pytest.raises(AtollError, match=r"one architecture.*mlp\+lora:2, mlp\+lora:4"):
        atoll.run("fedavg", adapter="lora:2,lora:4", **SMALL)


def test_adapters_and_networks_drawn_per_client_exclude_each_other() -> None:
    with pytest.raises(AtollError, match="init='per_client' exclude each other"):
        atoll.run("local", adapter="lora:2", init="per_client", **SMALL)


def trial(name: str) -> Trial:
    return trial_of(name, {"models": ["mlp"], "adapter": "lora:4"})


@pytest.mark.parametrize("name", ["fedavg", "scd", "ditto", "fedrep", "scaffold", "dcpfl", "fedproto"])
def test_method_obeys_laws_on_adapters(name: str) -> None:
    execution.finishes(trial(name))
    execution.vmap_equals_loop(trial(name))
    execution.resume_equals_whole_run(trial(name))


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_method_runs_on_adapters(name: str) -> None:
    options = {**SMALL, "rounds": 1, **short_options(name)}

    assert atoll.run(name, adapter="lora:2", **options).summary["status"] == "finished"


def test_exported_module_has_the_merged_weights(tmp_path: Path) -> None:
    atoll.run("fedavg", adapter="lora:4", out=str(tmp_path / "run"), **SMALL)
    saved = open_run(tmp_path / "run")
    client = saved.clients[0]
    x: Tensor = saved.pool.test[0].x

    assert torch.allclose(saved.module(client)(x), saved.personal(client)(x), atol=1e-6)
