"""Counted operations are those of real rounds."""

import pytest
from support.small_runs import setup

from atoll.engine.build import build_experiment
from atoll.engine.round import run_round
from atoll.methods import _registry
from atoll.simulation.costs import OperationCounter

# Work that does not follow a client's rows is counted once for each batch of rows, so it is rough: passes over public
# rows, samples of a generator, class statistics, single steps. The bounds are those of counted over real ones.
ROUGH = {
    "dcpfl": (0.7, 1), "fedala": (0.5, 1.6), "fedapen": (0.7, 1.3), "fedfed": (0.7, 1.3), "fedgen": (0.9, 1.1),
    "fedhenn": (1, 1.3), "fedkd": (0.95, 1.05), "fedmd": (1, 3.5), "fedpd": (1, 1.2), "fedtgp": (0.7, 1.3),
    "ktpfl": (1, 3.5), "perfedavg": (1, 1.5), "pfedes": (0.9, 1.1),
}  # fmt: skip


@pytest.mark.promise(
    "Results", "Counted operations are those of a real round, within 2 %, where the work follows the rows."
)
@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_counted_operations_are_those_of_the_second_round(name: str) -> None:
    made = setup(name, clients=3, partition="iid", epochs=1)
    experiment = build_experiment(made)
    server, backend = experiment.progress.server, experiment.rounds.backend
    task = made.pool.task()
    for t in (0, 1):
        with OperationCounter() as work:
            server, log = run_round(
                made.method,
                task,
                backend,
                server,
                t=t,
                seed=0,
                cohort=task.clients,
                per_client_states=experiment.stores.server_side,
            )
    experiment.accounting.count(log, experiment.progress)
    totals = experiment.progress.run_state.totals
    least, most = ROUGH.get(name, (0.98, 1.02))
    assert least <= (totals.client_flops + totals.server_flops) / work.total <= most
