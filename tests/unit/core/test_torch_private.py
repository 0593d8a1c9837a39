"""Private names of torch: used in two files alone, and replaced by public ways where torch lacks them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import toy_models
from torch import nn

import atoll
from atoll.core import functional_network, torch_private
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import Optimiser
from atoll.core.optim.sgd import SGD
from atoll.core.prng import key

SOURCES = Path(atoll.__file__).parent
ALLOWED = {"core/torch_private.py", "core/vmap/functorch.py"}
OF_MODULES = {"_parameters", "_buffers", "_modules", "_forward_hooks", "_overloadpacket", "_functorch"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names with an underscore that are imported from torch, or read from it, from modules or from operators."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for path in (f"{module}.{alias.name}".strip(".").split(".") for alias in node.names):
                if path[0] == "torch" and any(map(is_private, path)):
                    yield ".".join(path)
        elif isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            of_torch = isinstance(root, ast.Name) and root.id == "torch" and is_private(node.attr)
            if of_torch or node.attr in OF_MODULES:
                yield node.attr


def test_private_names_of_torch_stay_in_two_files() -> None:
    found = {
        str(path.relative_to(SOURCES)): names
        for path in SOURCES.rglob("*.py")
        if (names := sorted(set(private_names(ast.parse(path.read_text())))))
    }
    assert found.keys() == ALLOWED, found


@pytest.mark.parametrize(
    "code", ["torch._foreach_add_(a, b)", "from torch.utils import _pytree", "import torch._C", "net._modules['a']"]
)
def test_a_private_name_of_torch_is_found(code: str) -> None:
    assert list(private_names(ast.parse(code)))


@pytest.fixture
def fresh_kernel() -> Iterator[None]:
    torch_private.fused_sgd.cache_clear()
    yield
    torch_private.fused_sgd.cache_clear()


def trained(optimiser: Optimiser) -> Any:
    model = toy_models.mlp()
    return optimiser.fit(objective(model), model.init(), toy_models.random_client(12, 1, model), key(0))


def other_arguments(*args: Any, **options: Any) -> None:
    raise TypeError("_fused_sgd_() got an unexpected keyword argument 'is_first_step'")


def other_numbers(weights: Any, *args: Any, **options: Any) -> None:
    weights[0].zero_()


@pytest.mark.usefixtures("fresh_kernel")
@pytest.mark.parametrize("changed", [None, other_arguments, other_numbers])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.0}, {"momentum": 0.0, "weight_decay": 0.0}])
def test_sgd_without_torchs_private_kernels_gives_the_same_weights(
    settings: dict[str, float], changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimiser = SGD(0.1, 2, 4, clip=0.3, **settings)
    expected = trained(optimiser)
    torch_private.fused_sgd.cache_clear()
    for name in ("_foreach_add_", "_foreach_norm"):
        monkeypatch.delattr(torch, name)
    if changed is None:
        monkeypatch.delattr(torch, "_fused_sgd_")
    else:
        monkeypatch.setattr(torch, "_fused_sgd_", changed)

    assert torch_private.fused_sgd() is None
    toy_models.assert_near(trained(optimiser), expected, 1e-6)


def test_a_network_without_slots_runs_by_functional_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution, running statistics, and a layer that is used twice."""
    twice = nn.Linear(3, 3)
    body = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), twice, twice)
    net = toy_models.filled(toy_models.Net(body, nn.Linear(3, 2)))
    x = torch.arange(2 * 3 * 25.0).view(2, 3, 5, 5) / 100
    models = [Model(net)]
    monkeypatch.setattr(functional_network, "tensor_slots", lambda module: None)
    models.append(Model(net))
    params = {name: v if "num_batches" in name else 2 * v for name, v in models[0].init().items()}

    steps = [model.step(params, toy_models.batch(x, [0, 1])) for model in reversed(models)]
    toy_models.assert_near(models[1](params, x), models[0](params, x), 0)
    toy_models.assert_near(steps[0].logits, steps[1].logits, 0)
    toy_models.assert_near(steps[0].batch.stats, steps[1].batch.stats, 0)
