"""Operations on the tensors of many clients at once, against the same operation for one client after the other."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from atoll.core.prng import key, normal
from atoll.core.vmap import functional_gradients, functorch, operations


def test_copies_are_one_for_each_client() -> None:
    shared = torch.zeros(2)

    def write(add: Tensor) -> Tensor:
        own = operations.copies({"w": shared})["w"]
        return own.add_(add)

    assert vmap(write)(torch.tensor([1.0, 2.0])).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert shared.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("w", "all_have"), [([[1.0, 0.0], [1.0, 1.0]], True), ([[1.0, 0.0], [0.0, 0.0]], False)])
def test_all_clients_have_rows_is_true_only_if_every_client_has_some(w: list[list[float]], all_have: bool) -> None:
    seen = []
    vmap(lambda own: seen.append(operations.all_clients_have_rows(own)) or own)(torch.tensor(w))
    assert seen == [all_have]


def test_all_clients_have_rows_is_false_outside_vmap() -> None:
    assert not operations.all_clients_have_rows(torch.ones(2))


def test_on_stacked_passes_stacked_tensors_and_keeps_the_form_of_results() -> None:
    """Tensors and lists of them, also one that is the same for all; results keep their form."""
    forms = []

    def halves(both: list[Tensor], same: Tensor) -> list[Tensor]:
        forms.append([tuple(v.shape) for v in (*both, same)])
        return [both[0] + both[1], same / 2]

    def local(a: Tensor, b: Tensor) -> Tensor:
        total, half = operations.on_stacked(halves, [a, b], torch.tensor([2.0, 4.0]))
        return total + half

    a, b = torch.arange(6.0).view(3, 2), torch.ones(3, 2)
    assert torch.equal(vmap(local)(a, b), a + torch.tensor([2.0, 3.0]))
    assert torch.equal(local(a[0], b[0]), a[0] + torch.tensor([2.0, 3.0]))
    assert forms == [[(3, 2)] * 3, [(2,)] * 3]


def test_rows_are_taken_from_each_client() -> None:
    x, y, rows = torch.arange(24.0).view(2, 4, 3), torch.arange(8).view(2, 4), torch.tensor([[3, 1], [0, 0]])

    def taken(x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        return tuple(operations.take([x, y], rows))

    both = vmap(taken)(x, y, rows)
    assert torch.equal(both[0], torch.stack([x[0][[3, 1]], x[1][[0, 0]]]))
    assert both[1].tolist() == [[3, 1], [4, 4]]
    assert torch.equal(taken(x[0], y[0], rows[0])[0], both[0][0])
    assert torch.equal(vmap(taken, (None, None, 0))(x[0], y[0], rows)[0], x[0][rows])


def test_norms_are_those_of_each_client() -> None:
    a, b = torch.tensor([[[3.0, 4.0]], [[6.0, 8.0]]]), torch.tensor([-2.0, 1.0])
    assert [v.tolist() for v in vmap(lambda *vs: tuple(operations.norms(vs)))(a, b)] == [[5.0, 10.0], [2.0, 1.0]]
    assert [float(v) for v in operations.norms([a[0], b[0]])] == [5.0, 2.0]


@pytest.mark.parametrize(("most", "certain"), [(5.0, True), (4.9, False)])
def test_no_client_norm_exceeds_the_norm_over_all_clients(most: float, certain: bool) -> None:
    """Clients of 3 and 4: all together 5."""
    seen = []
    vmap(lambda v: seen.append(operations.all_within([v], most)) or v)(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    assert seen == [certain]
    assert not operations.all_within([torch.zeros(2)], most)


CLIENTS, OUT, IN = 3, 4, 5


def sliced(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One client after the other."""
    biases = [None] * CLIENTS if bias is None else list(bias)
    return torch.stack([F.linear(*one) for one in zip(x, weight, biases, strict=True)])


@pytest.mark.parametrize("shape", [(6, IN), (2, 6, IN), (IN,)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("biased", [True, False])
def test_products_are_those_of_each_client(shape: tuple[int, ...], shared: bool, biased: bool) -> None:
    """Also if all clients have the same weights, as before their first step."""
    x = normal(key(1), CLIENTS, *shape)
    weight, bias = normal(key(2), CLIENTS, OUT, IN), normal(key(3), CLIENTS, OUT) if biased else None
    if shared:
        weight, bias = weight[:1].expand_as(weight), None if bias is None else bias[:1].expand_as(bias)

    def loss(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out = operations.linear(params["x"], params["weight"], params.get("bias"))
        return out.square().sum(), out

    params = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    with torch.no_grad(), functional_gradients():
        grads, out = vmap(lambda p: functorch.gradient(loss, p))(params)
    leaves = {name: v.clone().requires_grad_() for name, v in params.items()}
    theirs = sliced(leaves["x"], leaves["weight"], leaves.get("bias"))
    expected = torch.autograd.grad(theirs.square().sum(), list(leaves.values()))
    assert torch.allclose(out, theirs, atol=1e-5)
    for name, slope in zip(leaves, expected, strict=True):
        assert torch.allclose(grads[name], slope, atol=1e-4), name


def test_gradients_have_the_memory_layout_of_the_weights() -> None:
    x, weight = normal(key(1), CLIENTS, 6, IN), normal(key(2), CLIENTS, OUT, IN).requires_grad_()
    made = operations._Linear.apply(x, weight, None)
    (slope,) = torch.autograd.grad(made.square().sum(), [weight])
    assert slope.stride() == weight.stride()


def test_rows_that_are_the_same_for_all_clients() -> None:
    """Public rows, say."""
    x, weight = normal(key(1), 6, IN), normal(key(2), CLIENTS, OUT, IN)
    with torch.no_grad(), functional_gradients():
        out = vmap(lambda w: operations.linear(x, w, None))(weight)
    assert torch.allclose(out, sliced(x.expand(CLIENTS, 6, IN), weight, None), atol=1e-6)


def test_products_work_inside_other_transformations() -> None:
    """The gradient of |grad (w x)^2 / 2|^2 = |x|^4 w^2 is 2 |x|^4 w, for x = 1 and w = 3: 6; for w = 5: 10."""

    def once(w: Tensor) -> Tensor:
        return operations.linear(torch.ones(1, 1), w, None).square().sum() / 2

    def twice(w: Tensor) -> Tensor:
        return torch.func.grad(lambda v: torch.func.grad(once)(v).square().sum())(w)

    with functional_gradients():
        assert vmap(twice)(torch.tensor([[[3.0]], [[5.0]]])).flatten().tolist() == [6.0, 10.0]
