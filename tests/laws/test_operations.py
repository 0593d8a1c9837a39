"""Counted operations are those of real rounds."""

import pytest
from support.small_runs import setup

from atoll.engine.build import build_experiment
from atoll.engine.round import run_round
from atoll.methods import _registry
from atoll.simulation.operations import OperationCounter

# Work that depends on what the rows hold is told from the rows of a dry run. The bounds are those of counted over real
# operations, where they are not within 2 %.
BY_CONTENT = {
    # The server draws by factors of covariances without features that never vary: fewer vary in the rows of a dry run.
    # It also shows by products, which are not counted, that covariances are semi-definite.
    "dcpfl": (0.6, 1.0),
}


@pytest.mark.promise(
    "Results", "Counted operations are those of a real round, within 2 %, for every method but DC-PFL."
)
@pytest.mark.parametrize("name", sorted(_registry.methods()))
def test_counted_operations_are_those_of_the_first_three_rounds(name: str) -> None:
    made = setup(name, clients=3, partition="iid", epochs=1)
    experiment = build_experiment(made)
    server, backend = experiment.progress.server, experiment.rounds.backend
    task, totals = made.pool.task(), experiment.progress.run_state.totals
    found = []
    for t in range(3):
        before = totals.client_flops + totals.server_flops
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
        experiment.stores.commit()
        experiment.accounting.count(log, experiment.progress)
        found.append((totals.client_flops + totals.server_flops - before) / work.total)
    least, most = BY_CONTENT.get(name, (0.98, 1.02))
    assert all(least <= ratio <= most for ratio in found), found
