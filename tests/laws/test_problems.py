"""Every method runs on every problem, or says in one sentence which of its needs the problem does not meet."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import problem_data
from support.small_runs import resumed

from atoll.config import Config
from atoll.core.method import traits_of
from atoll.core.optim.base import gradient
from atoll.core.optim.dpsgd import DPSGD
from atoll.core.optim.sgd import SGD
from atoll.core.prng import key
from atoll.core.problems import Labels, NextToken, Numbers
from atoll.core.traits import Need
from atoll.data.dataset import Dataset
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import Setup, build_setup
from atoll.engine.vmap_trial import largest_gap
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods.fedavg import FedAvg
from benchmarks.digests import short_options

METHODS = sorted(_registry.methods())
TINY: dict[str, Any] = {
    "clients": 3, "partition": "iid", "rounds": 2, "eval_every": 2, "epochs": 1, "batch_size": 16, "backend": "loop",
}  # fmt: skip
# Methods whose equations use labels as classes: prototypes, class statistics, softmax over classes, class counts.
WITH_CLASSES = {
    "dcpfl", "fd", "fedapen", "feddf", "feddistill", "feddw", "fedfed", "fedgen", "fedgh", "fedhkd", "fedkd",
    "fedproto", "fedrod", "fedtgp", "feduv", "fedpac", "fml", "ktpfl",
}  # fmt: skip


def setup(name: str, data: Dataset, model: str, **changes: Any) -> Setup:
    options = TINY | short_options(name) | {"models": (model,)} | changes
    if options.get("public"):
        options["public"] = 15
    return build_setup(Config(method=name, **options), data)


def images(name: str, task: str, **changes: Any) -> Setup:
    normalised = Need.BATCH_NORM in traits_of(_registry.methods()[name]).needs
    return setup(name, problem_data.images(task), "mlp:hidden=8&norm=true" if normalised else "mlp:hidden=8", **changes)


@cache
def numbers_run(name: str, **changes: Any) -> Result:
    return run_experiment(images(name, Numbers.task, **changes))


@pytest.mark.parametrize("task", [Numbers.task, Labels.task])
@pytest.mark.parametrize("name", METHODS)
def test_method_runs_or_refuses_by_its_declared_need(name: str, task: str) -> None:
    if Need.CLASSES in traits_of(_registry.methods()[name]).needs:
        with pytest.raises(AtollError, match=rf"^For {name}, labels must be classes.*--task {task}.*atoll methods"):
            images(name, task)
        return

    result = run_experiment(images(name, task))

    score = result.pool.problem.criterion.name
    assert np.isfinite(result.history[-1]["personal"]["post"][score])
    assert result.summary["task"] == task
    assert "accuracy" not in str(result.history) + str(result.summary) + str(result.table.column_names)


def test_needs_of_classes_are_as_decided_from_the_equations() -> None:
    declared = {name for name in METHODS if Need.CLASSES in traits_of(_registry.methods()[name]).needs}

    assert {name for name in declared if _registry.methods()[name].__module__.startswith("atoll.")} == WITH_CLASSES


@pytest.mark.parametrize("term", ["dw", "uv", "softlabels"])
def test_regulariser_with_classes_is_refused(term: str) -> None:
    with pytest.raises(AtollError, match=rf"^For --with {term}, labels must be classes"):
        images("fedavg", Numbers.task, terms=(term,))


def test_regulariser_without_classes_runs_on_numbers() -> None:
    assert numbers_run("fedavg", terms=("proximal:mu=0.1",)).summary["status"] == "finished"


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_fedavg_on_linear_regression_meets_the_least_squares_solution_of_the_pooled_rows() -> None:
    """One full-batch step per round is gradient descent on the pooled squared error, a convex problem.

    The solution over the training rows of all clients, with a column of ones for the bias, is that of lstsq.
    """
    step = SGD(lr=0.2, epochs=1, batch_size=10_000, weight_decay=0.0, clip=0.0, momentum=0.0)
    made = build_setup(
        Config(**TINY | {"method": "fedavg", "models": ("linear",), "rounds": 1500, "eval_every": 1500}),
        problem_data.images(Numbers.task),
        method=FedAvg(step),
    )

    params = run_experiment(made).server.params  # type: ignore[attr-defined]

    x, y = made.pool.train.all
    inputs = torch.cat([x.flatten(1), torch.ones(len(x), 1)], 1).double()
    solution = torch.linalg.lstsq(inputs, y.double()).solution
    found = torch.cat([params["head.weight"].T, params["head.bias"][None]])
    torch.testing.assert_close(found.double(), solution, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep"])
def test_processes_equal_the_loop_and_vmap_comes_near_on_numbers(name: str) -> None:
    loop = numbers_run(name)
    processes, batched = (numbers_run(name, backend=backend) for backend in ("processes", "vmap"))

    assert processes.summary["digest"] == loop.summary["digest"]
    assert largest_gap(batched.server, loop.server) < 1e-6
    for i in loop.pool.ids:
        assert largest_gap(batched.state(i), loop.state(i)) < 1e-6


def test_resumed_run_on_numbers_equals_uninterrupted_one(tmp_path: Path) -> None:
    made = images("fedavg", Numbers.task, rounds=3, eval_every=1)
    made = replace(made, config=replace(made.config, checkpoint_every=1))

    again = resumed(made, tmp_path / "run")

    assert again.summary["digest"] == run_experiment(made).summary["digest"]


# -- the next token ---------------------------------------------------------------------------------------------------

SEPARATE = {"fedala", "fedbabu", "fedper", "fedrep", "lgfedavg"}  # share or keep the head, which the embedding is

REFUSED = "BatchNorm|labels must be classes|one feature vector|tied to another layer|A proxy needs images"


@pytest.mark.parametrize("name", METHODS)
def test_language_model_with_tied_weights_learns_or_the_method_refuses_by_a_need(name: str) -> None:
    needs = traits_of(_registry.methods()[name]).needs
    unmet = needs & {Need.CLASSES, Need.ROW_FEATURES, Need.SEPARATE_HEAD, Need.PROXY, Need.BATCH_NORM}
    options: dict[str, Any] = {"rounds": 3, "eval_every": 1, "epochs": 2, "batch_size": 8, "lr": 0.1}
    if unmet:
        with pytest.raises(AtollError, match=REFUSED):
            setup(name, problem_data.text(), "lm:embedding=8", **options)
        return

    result = run_experiment(setup(name, problem_data.text(), "lm:embedding=8", **options))

    start = result.history[0]["personal"]["pre"]["perplexity"]
    first, last = (result.history[at]["personal"]["post"]["perplexity"] for at in (0, -1))
    assert last < first < start


@pytest.mark.parametrize("name", sorted(SEPARATE))
def test_methods_that_part_the_head_refuse_tied_weights(name: str) -> None:
    with pytest.raises(AtollError, match="tied to another layer"):
        setup(name, problem_data.text(), "lm:embedding=8")


def test_language_model_is_the_same_in_processes_and_near_under_vmap() -> None:
    loop, processes, batched = (
        run_experiment(setup("fedavg", problem_data.text(), "lm:embedding=8", backend=backend))
        for backend in ("loop", "processes", "vmap")
    )

    assert loop.pool.problem == NextToken(5, 8)
    assert processes.summary["digest"] == loop.summary["digest"]
    assert largest_gap(batched.server, loop.server) < 1e-6


def test_later_tokens_do_not_change_earlier_outputs_of_the_language_model() -> None:
    model = setup("fedavg", problem_data.text(), "lm:embedding=8").pool.models["0"]
    tokens = torch.tensor([[0, 1, 2, 3]])

    before, after = model(model.init(), tokens), model(model.init(), torch.tensor([[0, 1, 2, 4]]))

    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def test_models_and_metrics_of_users_get_numbers_in_the_unit_of_the_data() -> None:
    """Targets around 1000: standardised outputs would be near 0."""
    plain = problem_data.images(Numbers.task)
    data = replace(plain, y_train=plain.y_train + 1000, problem=Numbers(3, (1000.0,) * 3, (1.0,) * 3))

    def mean_output(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return float(outputs.mean())

    config = Config(**TINY | {"method": "fedavg", "models": ("linear",)})
    result = run_experiment(build_setup(config, data, measures={"mean_output": mean_output}))

    generic, x = result.generic(), result.pool.test.all.x
    assert generic is not None
    for outputs in (result.personal("0")(x), generic(x)):
        assert 990 < float(outputs.mean()) < 1010
    assert 990 < result.history[-1]["personal"]["post"]["mean_output"] < 1010


@pytest.mark.parametrize("task", [Numbers.task, Labels.task, NextToken.task])
def test_private_step_without_noise_and_clipping_is_a_plain_step_on_every_problem(task: str) -> None:
    """The mean of the gradients of single rows is the gradient of the batch, also for tied weights."""
    text = task == NextToken.task
    made = setup("fedavg", problem_data.text(), "lm:embedding=8") if text else images("fedavg", task)
    client = made.pool.client("0")
    batch, params = next(client.batches(key(0), 1, 8)), client.model.init()

    plain, _ = gradient(client.objective(), params, batch)
    private, _, _ = DPSGD(clip=1e6)._slope(client.objective(), params, batch)

    for name, expected in plain.items():
        torch.testing.assert_close(private[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("task", "kind"), [("classes", np.int32), (Numbers.task, np.float64)])
def test_labels_of_other_number_types_give_the_same_run(task: str, kind: type) -> None:
    plain = problem_data.images(task)
    other = replace(plain, y_train=plain.y_train.astype(kind), y_test=plain.y_test.astype(kind))

    one, two = (run_experiment(setup("fedavg", data, "mlp:hidden=8")) for data in (plain, other))

    assert one.summary["digest"] == two.summary["digest"]
