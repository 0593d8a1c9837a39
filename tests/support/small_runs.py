"""Small federations to try methods on, and how to compare what comes out."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from atoll.config import Config
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import Setup, build_setup
from atoll.methods._factory import make
from atoll.storage.run_dir import RunDir
from benchmarks.digests import short_options

# FedAPEN learns the weights of its ensembles on rows set aside: of few rows, a share that still covers the classes.
FEW_ROWS: dict[str, dict[str, Any]] = {"fedapen": {"settings": {"share": 0.4}}}


@cache
def setup(name: str, **changes: Any) -> Setup:
    """Build a federation of five clients with different numbers of rows, so that batches are padded under vmap.

    Few steps keep trials short, and differences in the last digit from growing.
    """
    options: dict[str, Any] = {
        "rows": 300, "clients": 5, "partition": "dirichlet:0.5", "rounds": 3, "eval_every": 3, "epochs": 1,
        "batch_size": 16, "backend": "loop",
    }  # fmt: skip
    base = name.partition(":")[0]
    options |= short_options(base) | FEW_ROWS.get(base, {})
    return build_setup(Config(method=name, **options | changes))


@cache
def run(name: str, **changes: Any) -> Result:
    return run_experiment(setup(name, **changes))


def resumed(made: Setup, folder: Path, done: int = 1) -> Result:
    """The same run, ended after so many rounds and continued from its checkpoint."""
    short = replace(made, config=replace(made.config, rounds=done, checkpoint_every=1))
    with RunDir(folder) as run_dir:
        run_dir.start(short.config, resume=False, force=False)
        run_experiment(short, run_dir)
        return run_experiment(made, run_dir)


def predictions_of(result: Result) -> dict[str, Any]:
    """Every client's personal model on its test rows."""
    pool = result.pool
    return {i: result.personal(i)(pool.test[pool.position(i)].x) for i in pool.ids}


def same_models(a: Result, b: Result) -> bool:
    x, y = predictions_of(a), predictions_of(b)
    return all(torch.equal(x[i], y[i]) for i in x)


PERSONAL = {"personal_optim.epochs": 1, "personal_optim.batch_size": 16}  # as the common optimiser of these tests


def made_with(name: str, **settings: Any) -> Result:
    plain = setup(name)
    method = make(name, plain.config.settings | settings, optimiser=plain.config.optimiser_options)
    return run_experiment(replace(plain, method=method))


def gap_params(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max()) for n in a)
