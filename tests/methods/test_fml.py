"""FML: both losses by hand, one step of both models from one forward pass, and what two models must not share."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support import toy_models
from support.small_runs import gap_params, made_with, run, same_models, setup
from torch import Tensor, nn

from atoll.clients import method_calls
from atoll.core.batch import Step
from atoll.core.client import Client
from atoll.core.model import Model
from atoll.core.payloads import Nothing, nbytes
from atoll.core.prng import key
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.methods._mutual_learning import Shared, Update, kl_from_peer
from atoll.methods.fedavg import FedAvg, Global
from atoll.methods.fml import FML
from atoll.methods.local import Local, State
from atoll.models import build

ALONE = {"alpha": 1.0, "beta": 1.0}


def step(logits: Tensor, y: list[int] | None = None, w: list[float] | None = None) -> Step:
    """A step whose logits are given; the label is 0 unless said."""
    b = toy_models.batch(logits.detach(), y or [0] * len(logits))
    return Step({}, b._replace(w=torch.tensor(w)) if w else b, logits, logits)


def pair() -> tuple[Tensor, Tensor]:
    """z_loc = (0, 0), z_meme = (ln 3, 0): predictions (1/2, 1/2) and (3/4, 1/4)."""
    return torch.zeros(1, 2), torch.tensor([[3.0, 1.0]]).log()


def unlike(n: int = 9, seed: int = 1) -> Client:
    """Its own model and the shared one differ in width."""
    return toy_models.random_client(n, seed, toy_models.mlp(), proxy=toy_models.mlp(width=5, seed=3))


def shared_of(c: Client) -> Model:
    assert c.proxy is not None
    return c.proxy


def joined(method: FML, c: Client, rounds: int = 1) -> tuple[Update, State]:
    down, state = Shared(shared_of(c).init()), method_calls.init_client(method, c, key(0))
    for r in range(rounds):
        up, state = toy_models.participate(method, down, state, c, key(r))
    return up, state


def assert_apart(method: FML, c: Client) -> None:
    """The own model is Local's, the shared one FedAvg's, bit for bit."""
    up, state = joined(method, c)
    _, alone = toy_models.participate(Local(method.optim), Nothing(), State(c.model.init()), c, key(0))
    model = shared_of(c)
    plain, _ = toy_models.participate(
        FedAvg(method.optim), Global(model.init(), {}), Nothing(), replace(c, model=model), key(0)
    )
    toy_models.assert_same(state, alone)
    toy_models.assert_same(up, Update(plain.params, plain.n))


def test_losses_by_hand() -> None:
    """Label 0, alpha = beta = 1/2. CE: -ln 1/2 = 0.693147 and -ln 3/4 = 0.287682.
    KL(meme || loc) = 3/4 ln(3/2) + 1/4 ln(1/2) = 0.130812;  KL(loc || meme) = 1/2 ln(2/3) + 1/2 ln 2 = 0.143841.
    L_loc = (0.693147 + 0.130812) / 2 = 0.411980;  L_meme = (0.287682 + 0.143841) / 2 = 0.215762.
    """
    own, meme = (step(z) for z in pair())
    assert float(kl_from_peer(own, meme)) == pytest.approx(0.130812, abs=1e-6)
    assert float(kl_from_peer(meme, own)) == pytest.approx(0.143841, abs=1e-6)
    assert [float(v) for v in FML().losses(own, meme)] == pytest.approx([0.411980, 0.215762], abs=1e-6)


def test_each_prediction_is_a_constant_to_the_other_loss() -> None:
    """With respect to its own logits the slope of KL(q || p) is p - q, so that of L_loc is (p - y + p - q) / 2 =
    ((-1/2, 1/2) + (-1/4, 1/4)) / 2 = (-0.375, 0.375), and that of L_meme is ((-1/4, 1/4) + (1/4, -1/4)) / 2 = 0.
    If both losses flowed into both models, these would be (-0.512327, 0.512327) and (0.102995, -0.102995).
    """
    z = [v.requires_grad_() for v in pair()]
    grads = torch.autograd.grad(sum(FML().losses(step(z[0]), step(z[1])), start=torch.zeros(())), z)
    torch.testing.assert_close(grads[0], torch.tensor([[-0.375, 0.375]]))
    torch.testing.assert_close(grads[1], torch.zeros(1, 2))


def test_temperature() -> None:
    """T = 2: meme's prediction is (sqrt 3, 1) / (1 + sqrt 3) = (0.633975, 0.366025), of entropy 0.656806; its KL from
    (1/2, 1/2) is ln 2 - 0.656806 = 0.036341, times 4 0.145363. L_loc = (0.693147 + 0.145363) / 2 = 0.419255.
    """
    own, meme = (step(z) for z in pair())
    assert float(FML(temperature=2.0).losses(own, meme)[0]) == pytest.approx(0.419255, abs=1e-6)


def test_divergence_is_a_mean_over_real_rows() -> None:
    """The same row twice gives what it gives once, a padded row nothing. Over rows and classes it would be half."""
    z, q = pair()
    twice = step(z.repeat(2, 1)), step(q.repeat(2, 1))
    assert float(kl_from_peer(*twice)) == pytest.approx(0.130812, abs=1e-6)
    padded = [step(torch.cat([v, torch.tensor([[5.0, -1.0 - i]])]), w=[1.0, 0.0]) for i, v in enumerate((z, q))]
    assert float(kl_from_peer(*padded)) == pytest.approx(0.130812, abs=1e-6)


def test_both_models_step_from_the_same_forward_pass() -> None:
    """One full batch: each moves by 0.1 times its own slope at the other's old params."""
    c, method = unlike(), FML(toy_models.PLAIN, alpha=0.3, beta=0.8)
    up, state = joined(method, c)
    params = {"own": c.model.init(), "shared": shared_of(c).init()}
    leaves = {side: {name: v.requires_grad_() for name, v in p.items()} for side, p in params.items()}
    logits = {"own": c.model(leaves["own"], c.x), "shared": shared_of(c)(leaves["shared"], c.x)}
    for side, peer, share, after in (("own", "shared", 0.3, state.params), ("shared", "own", 0.8, up.params)):
        target = logits[peer].detach().softmax(1)
        kl = F.kl_div(logits[side].log_softmax(1), target, reduction="batchmean")
        loss = share * F.cross_entropy(logits[side], c.y) + (1 - share) * kl
        slopes = torch.autograd.grad(loss, list(leaves[side].values()))
        for (name, v), slope in zip(params[side].items(), slopes, strict=True):
            torch.testing.assert_close(after[name], v.detach() - 0.1 * slope)


def test_the_own_model_goes_on_where_it_stopped_and_the_shared_one_starts_from_the_download() -> None:
    c, method = unlike(), FML(toy_models.RICH)
    down = Shared(shared_of(c).init())
    _, first = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(0))
    up, second = toy_models.participate(method, down, first, c, key(1))
    again, _ = toy_models.participate(method, down, first, c, key(1))
    toy_models.assert_same(up, again)
    fresh, _ = toy_models.participate(method, down, method_calls.init_client(method, c, key(0)), c, key(1))
    assert not torch.equal(up.params["head.weight"], fresh.params["head.weight"])  # its peer is another one
    assert not torch.equal(first.params["head.weight"], second.params["head.weight"])


# -- degenerate -------------------------------------------------------------------------------------------------------


def test_without_distillation_both_models_are_trained_alone() -> None:
    assert_apart(FML(toy_models.RICH, **ALONE), unlike())


@pytest.mark.parametrize("clip", [0.05, 0.5])
def test_clipping_does_not_see_the_other_model(clip: float) -> None:
    """A common norm would shrink both steps by the larger of the gradients."""
    assert_apart(FML(replace(toy_models.RICH, clip=clip), **ALONE), unlike())


def test_whole_runs_without_distillation() -> None:
    apart = made_with("fml", **ALONE)
    assert same_models(apart, run("local"))
    assert gap_params(apart.server.params, run("fedavg").server.params) == 0


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.5), (0.5, 1.0)])
def test_one_side_without_distillation(alpha: float, beta: float) -> None:
    """What the peer does, or learns from it, does not reach a model that is taught by labels alone."""
    half = made_with("fml", alpha=alpha, beta=beta)
    assert same_models(half, run("local")) == (alpha == 1)
    assert (gap_params(half.server.params, run("fedavg").server.params) == 0) == (beta == 1)


def test_it_says_what_it_degenerates_to() -> None:
    assert FML().reduces_to() is None
    assert "Local" in str(FML(alpha=1.0).reduces_to())
    assert "FedAvg" in str(FML(beta=1.0).reduces_to())


# -- running statistics -----------------------------------------------------------------------------------------------


def normed(width: int, seed: int) -> Model:
    body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU())
    return Model(toy_models.filled(toy_models.Net(body, nn.Linear(width, 3)), seed))


def test_each_model_keeps_its_own_running_statistics() -> None:
    """Two models with buffers of the same names and different shapes, two epochs of two batches."""
    c = toy_models.random_client(8, 1, normed(4, 0), proxy=normed(5, 3))
    assert_apart(FML(toy_models.RICH, **ALONE), c)
    up, state = joined(FML(toy_models.RICH), c)
    for params, width in ((state.params, 4), (up.params, 5)):
        assert params["buffers.body.1.running_mean"].shape == (width,)
        assert params["buffers.body.1.num_batches_tracked"] == 4
        assert params["buffers.body.1.running_mean"].abs().sum() > 0
    assert list(up.params) == list(shared_of(c).init())
    assert list(state.params) == list(c.model.init())


@pytest.mark.parametrize("own", [toy_models.mlp(), normed(4, 0)])
def test_no_batch_has_a_single_row_if_either_model_has_statistics(own: Model) -> None:
    """Nine rows in batches of four leave one over, which has no variance."""
    up, _ = joined(FML(toy_models.RICH), toy_models.random_client(9, 1, own, proxy=normed(5, 3)))
    assert all(torch.isfinite(v).all() for v in up.params.values())


def test_statistics_of_the_shared_model_see_no_padding() -> None:
    """Clients of unlike sizes and no statistics of their own, batched: as one after the other."""
    made = setup("fml", rounds=1, eval_every=1)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
    pool = replace(made.pool, proxy=Model(toy_models.filled(toy_models.Net(body, nn.Linear(8, 10)))))
    assert len({pool.train.size(at) for at in range(5)}) > 1
    loop, batched = (
        run_experiment(replace(made, pool=pool, config=replace(made.config, backend=backend))).server.params
        for backend in ("loop", "vmap")
    )
    assert loop["buffers.body.2.num_batches_tracked"] == batched["buffers.body.2.num_batches_tracked"]
    for name, v in loop.items():
        torch.testing.assert_close(batched[name], v, rtol=1e-4, atol=1e-5)


# -- server, predictions, settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("uniform", "expected"), [(False, 2.3), (True, 2.2)])
def test_aggregation(uniform: bool, expected: float) -> None:
    """n = (100, 300), theta = (2.0, 2.4): by rows 0.25 * 2 + 0.75 * 2.4 = 2.3, equally 2.2."""
    ups = [Update({"theta": torch.tensor([v])}, torch.tensor(n)) for v, n in ((2.0, 100.0), (2.4, 300.0))]
    out = toy_models.aggregate(
        FML(uniform=uniform), Shared({"theta": torch.zeros(1)}), ups, toy_models.task(toy_models.mlp())
    )
    assert float(out.params["theta"]) == pytest.approx(expected)


def test_who_predicts() -> None:
    c, method = unlike(), FML()
    t = toy_models.task(c.model, proxy=c.proxy)
    server, state = method.init_server(t, key(0)), State(toy_models.mlp(seed=9).init())
    assert torch.equal(method_calls.personal_predictor(method, server, None, state, c)(c.x), c.model(state.params, c.x))
    assert torch.equal(method_calls.generic_predictor(method, server, t)(c.x), shared_of(c)(shared_of(c).init(), c.x))


def test_bytes() -> None:
    """CNN-5 for CIFAR-10 has 670,058 numbers of 4 bytes; up goes one more, n_k."""
    with torch.device("meta"):
        params = Model(build("cnn5", (3, 32, 32), 10)).init()
        n = torch.zeros(())
    assert nbytes(Shared(params)) == 4 * 670_058
    assert nbytes(Update(params, n)) == 4 * 670_059


def test_needs_a_shared_model() -> None:
    with pytest.raises(AtollError, match="shared model"):
        FML().init_server(toy_models.task(toy_models.mlp()), key(0))


@pytest.mark.parametrize("wrong", [{"alpha": 1.5}, {"beta": -0.1}, {"temperature": 0.0}])
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(AtollError, match=next(iter(wrong))):
        FML(**wrong)


def test_vmap_equals_loop() -> None:
    c = unlike()
    toy_models.check_vmap(FML(toy_models.RICH), c.model, proxy=c.proxy)
