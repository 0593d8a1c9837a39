"""The privacy gate: what leaves a client when classes have few rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Atoll
from support.small_runs import setup
from support.toy_models import assert_same, client, identity_body

from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import ClientTask
from atoll.clients.validation.validator import Validator
from atoll.core.class_statistics import Pool, class_means, covariance_factors, covariances
from atoll.core.client import Client
from atoll.core.payloads import pack
from atoll.core.prng import key
from atoll.core.schema import constraints_of, declared_constraints, tensors_of
from atoll.core.task import Round
from atoll.engine.build import run_experiment
from atoll.engine.round import RoundPolicy, run_round
from atoll.methods import _registry, fedgh, fedproto
from atoll.methods._factory import make
from atoll.methods.dcpfl import DCPFL, Gaussians
from atoll.privacy.disclosure import DisclosureControl, class_tables, count_by_class
from atoll.privacy.policy import Privacy

MODEL = identity_body(2, 6)


def partition(seed: int) -> Client:
    """A client with a random number of rows, unevenly of some of the classes."""
    rng = np.random.default_rng(seed)
    y = rng.choice(6, size=int(rng.integers(1, 80)), p=rng.dirichlet(np.full(6, 0.4)))
    return client(rng.normal(size=(len(y), 2)), y, MODEL, 6)


def upload_of(c: Client, kind: int) -> Any:
    """What FedProto, FedGH or DC-PFL would send."""
    n, mu = class_means(c.x, c.members())
    if kind == 0:
        return fedproto.Means(mu, n)
    return fedgh.Means(mu, n > 0) if kind == 1 else Gaussians(n, mu, covariances(c.x, c.members(), n, mu), None)


@pytest.mark.promise(
    "Privacy", "With `--min-class-count M`, no statistic of a class with fewer than M samples leaves a client."
)
@pytest.mark.parametrize("partitions", [500, pytest.param(10_000, marks=pytest.mark.chaos)])
def test_no_class_below_the_threshold_leaves_in_any_partition(partitions: int) -> None:
    """Whatever the partition: of a class with fewer rows than the threshold, nothing is left in what is packed."""
    gate, withheld = DisclosureControl(10, "diag"), 0
    for seed in range(partitions):
        c = partition(seed)
        counts, up = count_by_class(c), upload_of(c, seed % 3)
        few = (counts > 0) & (counts < 10)
        withheld += int(few.sum())
        passed = gate.filter_upload(up, counts, declared_constraints(type(up)))
        assert not any(bool(v[few].any()) for v in tensors_of(passed).values())
        labels = next((v for name, v in pack(passed).tensors.items() if name.endswith("#held")), torch.arange(6))
        assert bool((counts[labels.long()] >= 10).all())
        assert torch.equal(tensors_of(passed)[_mean(up)][counts >= 10], tensors_of(up)[_mean(up)][counts >= 10])
    assert withheld > partitions  # the property was put to the test


def _mean(up: Any) -> str:
    return "mu" if isinstance(up, Gaussians) else "means"


def test_covariances_of_few_rows_are_replaced() -> None:
    """With d = 2, covariances need 2 (2 + 1) = 6 rows.

    Class 0 has the rows (0, 0), (2, 2), (0, 2), (2, 0): mean (1, 1), variances 4/3, covariance 0 before the fifth row
    (5, 5). Its covariance is full, and class 1, six times the same row, has a covariance of 0.
    """
    x = [[0, 0], [2, 2], [0, 2], [2, 0], [5, 5], *[[1, 3]] * 6]
    c = client(x, [0] * 5 + [1] * 6, identity_body(), 2)
    n, mu = class_means(c.x, c.members())
    up = Gaussians(n, mu, covariances(c.x, c.members(), n, mu), None)
    marks = declared_constraints(Gaussians)
    assert float(up.sigma[0, 0, 1]) == pytest.approx(3.2)  # sum (x - 1.8)(y - 1.8) = 12.8, over 4
    diagonal = DisclosureControl(3, "diag").filter_upload(up, n, marks).sigma
    assert torch.equal(diagonal[0], torch.diag(up.sigma[0].diagonal()))
    assert torch.equal(diagonal[1], up.sigma[1])
    assert not DisclosureControl(3, "none").filter_upload(up, n, marks).sigma[0].any()
    assert torch.equal(DisclosureControl(3, "client").filter_upload(up, n, marks).sigma, up.sigma)
    assert_same(DisclosureControl(0, "client").filter_upload(up, n, marks), up)


@pytest.mark.parametrize("instead", ["diag", "none"])
def test_factors_of_covariances_of_few_rows_are_withheld(instead: str) -> None:
    """As covariances are: with d = 2 they need 6 rows, and class 0 has 5. A factor has no room for a diagonal."""
    x = [[0, 0], [2, 2], [0, 2], [2, 0], [5, 5], *[[1, 3], [3, 1]] * 3]
    c = client(x, [0] * 5 + [1] * 6, identity_body(), 2)
    n, mu = class_means(c.x, c.members())
    up = Gaussians(n, mu, None, covariance_factors(c.x, c.members(), n, mu, 1))
    assert up.factors[0].any()

    factors = DisclosureControl(3, instead).filter_upload(up, n, declared_constraints(Gaussians)).factors

    assert not factors[0].any()
    assert torch.equal(factors[1], up.factors[1])


def test_total_row_count_excludes_withheld_classes() -> None:
    """FedDW sends its number of rows beside the counts of classes: what is left is the sum of those that leave."""
    method = make("feddw")
    plain = setup("feddw")
    c = plain.pool.client(plain.pool.ids[0])
    up, _ = _local(plain, method, c)
    counts = count_by_class(c)
    least = int(counts[counts > 0].median()) + 1
    gated = DisclosureControl(least).filter_upload(up, counts, constraints_of(method))
    assert float(counts[counts < least].sum()) > 0
    assert float(gated.n) == float(gated.extra["DW.count"].sum()) == float(counts[counts >= least].sum())
    assert not gated.extra["DW.sum"][counts < least].any()
    assert torch.equal(gated.params["head.weight"], up.params["head.weight"])  # weights pass unchanged


def _local(plain: Any, method: Any, c: Client) -> Any:
    task = plain.pool.task()
    down = method.broadcast(method.init_server(task, key("s")), plain.pool.ids[0], task, Round(0), key(0))
    with torch.no_grad():
        return method.client_update(down, method_calls.init_client(method, c, key("i")), c, Round(0), key("l"))


@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_run_continues_if_gate_withholds_all_classes(name: str) -> None:
    """Every method runs on if all classes are kept back, and no class leaves; what has none passes unchanged."""
    plain = setup(name, rounds=1, eval_every=1, min_class_count=10_000)
    privacy, seen = Privacy(plain.config, plain.method, plain.pool), []

    class Watched(LoopBackend):
        def train(self, *a: Any) -> Any:
            for outcome in super().train(*a):
                seen.append(outcome.upload)
                yield outcome

    watched, task = Watched(plain.pool, MemoryStore(), privacy.upload_filter), plain.pool.task()
    server = plain.method.init_server(task, key(0, "init", "server"))
    checks = Validator(plain.method, plain.pool, 0)
    _, log = run_round(
        plain.method, task, watched, server, t=0, seed=0, cohort=task.clients, policy=RoundPolicy(checks)
    )
    assert not log.rejected
    assert len(set(log.accepted)) == 5
    covered = privacy.record()["gate"]["covers"]
    for up in seen:
        tensors = tensors_of(up)
        assert set(class_tables(tensors, constraints_of(plain.method))) <= set(covered)
        tables = [tensors[name] for name in covered if name in tensors and tensors[name].ndim]
        assert not any(bool(table.any()) for table in tables)


COVERED = {"dcpfl", "fd", "feddistill", "feddw", "fedgen", "fedgh", "fedhkd", "fedpac", "fedproto", "fedtgp"}


def test_gate_covers_all_class_tables() -> None:
    """A new method whose upload has tables of classes belongs on this list, or has forgotten its marks."""
    found = set()
    for name in _registry.methods():
        plain = setup(name, rounds=1, eval_every=1, min_class_count=10_000)
        if Privacy(plain.config, plain.method, plain.pool).record()["gate"]["covers"]:
            found.add(name)
    assert found == COVERED


def test_gate_is_off_by_default() -> None:
    plain = setup("dcpfl")
    assert run_experiment(plain).summary["privacy"] == {
        "gate": None,
        "dp": None,
        "statement": ["No privacy mechanism was on: the server reads uploads as methods make them."],
    }


@pytest.mark.parametrize("backend", ["loop", "vmap", "processes"])
def test_record_counts_what_gate_withheld(backend: str) -> None:
    """Counted again from the holdings: 2 rounds of all clients."""
    plain = setup("dcpfl", rounds=2, eval_every=1, min_class_count=12, cov_source="diag", backend=backend, workers=2)
    result = run_experiment(plain)
    counts = torch.stack([count_by_class(plain.pool.client(i)) for i in plain.pool.ids])
    few, d = (counts > 0) & (counts < 12), plain.pool.task().feature_dim
    gate = result.summary["privacy"]["gate"]
    assert gate == {
        "min_class_count": 12, "cov_source": "diag", "covers": ["mu", "n", "sigma"], "passes": [],
        "classes": 2 * int((counts > 0).sum()), "withheld": 2 * int(few.sum()), "rows": 2 * int(counts.sum()),
        "rows_withheld": 2 * int(counts[few].sum()), "covariances": 2 * int((counts >= 12).sum()),
        "replaced": 2 * int(((counts >= 12) & (counts < 2 * (d + 1))).sum()),
    }  # fmt: skip
    assert gate["withheld"] > 0
    assert result.history[0]["privacy"]["withheld"]["withheld"] == gate["withheld"] // 2
    assert result.history[1]["privacy"]["withheld"]["withheld"] == gate["withheld"]
    assert "no formal guarantee" in result.summary["privacy"]["statement"][0]


def test_resumed_run_continues_tally(tmp_path: Path, atoll: Atoll, without_report: None) -> None:
    common = ["--rows", 400, "--clients", 5, "--epochs", 1, "--min-class-count", 12, "--checkpoint-every", 1]
    atoll("run", "fedproto", *common, "--rounds", 2, "--out", "whole", "--quiet")
    atoll("run", "fedproto", *common, "--rounds", 1, "--out", "parts", "--quiet")
    atoll("run", "--resume", "parts", "--rounds", 2, "--quiet")
    whole, parts = (json.loads(Path(f"{where}/summary.json").read_text()) for where in ("whole", "parts"))
    assert whole["privacy"] == parts["privacy"]
    assert whole["digest"] == parts["digest"]


def test_invalid_gate_options_are_refused(refused: Callable[..., str]) -> None:
    assert "--min-class-count must be at least 0" in refused("run", "dcpfl", "--min-class-count", -1)
    assert "diag" in refused("run", "dcpfl", "--cov-source", "dia")


# ---------------------------------------------------------------------------------------------------------------------
# Covariances from means (FedCOF)


def test_covariance_from_three_means() -> None:
    """Three clients with one class of one feature: n = 2, 4, 2 and means 0, 3, 6.

    The pooled mean is (0 + 12 + 12) / 8 = 3; sum n (mu_k - 3)^2 = 2 * 9 + 0 + 2 * 9 = 36; divided by K - 1 = 2: 18.
    """
    pool = Pool(1, 1, from_means=True)
    for n, mu in ((2, 0), (4, 3), (2, 6)):
        pool.add(torch.tensor([float(n)]), torch.tensor([[float(mu)]]), None)
    assert float(pool.mu) == 3
    assert float(pool.sigma()) == pytest.approx(18)


def test_covariance_of_one_mean_is_zero() -> None:
    pool = Pool(2, 2, from_means=True)
    pool.add(torch.tensor([5.0, 0.0]), torch.ones(2, 2), None)
    assert not pool.sigma().any()


def test_covariances_from_means_have_no_bias() -> None:
    """Means of 5 clients with 3 to 30 rows of one normal distribution: the mean of 4,000 estimates is its covariance.

    An estimate of the variance s^2 from K - 1 = 4 degrees of freedom has the deviation s^2 sqrt(2 / 4); that of the
    mean of 4,000 is 0.0112 s^2. Four of these are allowed.
    """
    rng, sizes = np.random.default_rng(0), (3, 5, 8, 13, 30)
    true = np.array([[4.0, 1.0], [1.0, 1.0]])
    pool = Pool(4000, 2, from_means=True)
    for n in sizes:
        mu = rng.multivariate_normal([2.0, -1.0], true / n, size=4000)
        pool.add(torch.full((4000,), float(n)), torch.from_numpy(mu), None)
    found = pool.sigma().mean(0).numpy()
    assert np.abs(found - true).max() < 4 * 0.0112 * 4


def test_dcpfl_uploads_no_covariance_if_the_server_takes_the_means() -> None:
    plain = setup("dcpfl", cov_source="means")
    assert isinstance(plain.method, DCPFL)
    assert plain.method.cov_source == "means"
    up, _ = _local(plain, plain.method, plain.pool.client(plain.pool.ids[0]))
    assert up.sigma is None
    result = run_experiment(plain)
    assert result.summary["status"] == "finished"
    assert result.summary["bytes"]["up"] < run_experiment(setup("dcpfl")).summary["bytes"]["up"] / 10


def test_cov_source_has_no_effect_on_methods_without_covariances() -> None:
    plain = run_experiment(setup("fedproto", rounds=1, eval_every=1))
    assert (
        plain.summary["digest"]
        == run_experiment(setup("fedproto", rounds=1, eval_every=1, cov_source="means")).summary["digest"]
    )


def test_job_is_all_the_gate_asks_for() -> None:
    """The outlet takes what every backend has: the job, the client, the upload."""
    plain = setup("fedproto", min_class_count=1)
    privacy, c = Privacy(plain.config, plain.method, plain.pool), plain.pool.client(plain.pool.ids[0])
    up, _ = _local(plain, plain.method, c)
    assert_same(privacy.upload_filter(ClientTask("a", None, None), c, up), up)  # type: ignore[arg-type]


def test_report_states_privacy_guarantees_and_limits(atoll: Atoll) -> None:
    words = ["run", "feddw", "--rows", 300, "--clients", 3, "--epochs", 1, "--rounds", 1, "--quiet"]
    atoll(*words, "--min-class-count", 12, "--out", "gated")
    page = " ".join(Path("gated/report.html").read_text().split())
    assert "The gate acted on extra/DW.count, extra/DW.sum, n:" in page
    assert "no formal guarantee" in page
    assert "The gate let params (model) pass unchanged" in page
    atoll(*words, "--out", "open")
    assert "The gate" not in Path("open/report.html").read_text()
