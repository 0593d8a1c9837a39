"""A file fits a reader's head: about 250 lines, or there is a reason why it is longer."""

from pathlib import Path

import atoll

MOST = 250
ROOT = Path(atoll.__file__).parent
REASONS = {
    "backends/ray_backend.py": "one backend, with its remote worker beside it",
    "cli/data.py": "one command group",
    "cli/deploy/__init__.py": "the commands of one group, each a dozen lines",
    "cli/run.py": "two commands that share their options and messages",
    "cli/signatures.py": "descriptions of options and their reading back belong together",
    "clients/model_store.py": "one store: what enters, what is found, and its form in checkpoints",
    "clients/pool.py": "one record with its builders",
    "config/run_config.py": "the list of all options, in one place",
    "core/optim/base.py": "the training loop and the gradient that it follows",
    "core/payloads.py": "the definition of payloads and the one way to pack and unpack them",
    "core/problems.py": "five kinds of problems side by side, with the same functions",
    "data/loading.py": "one grammar of data sets, and a branch for each form",
    "deploy/federation_dir.py": "one folder: create, read, add and revoke",
    "deploy/server/handshake.py": "one protocol step: every entry of a site's description is checked",
    "deploy/site/config.py": "one file of a site, every entry of which is checked",
    "deploy/site/participation.py": "one site's part of a run, from its start to its last answer",
    "deploy/site/worker.py": "one process, with the operations that it answers",
    "deploy/supervisor.py": "one process that starts and ends others",
    "engine/model_factory.py": "all ways to a client's network: by name, by module, with an adapter, as a proxy",
    "engine/setup.py": "one function with its steps in order",
    "experiments/runner.py": "runs in this process and in others, with one way to stop both",
    "inference/models.py": "trained models of a run, opened from its folder",
    "inference/new_clients.py": "one plan and its set-up",
    "methods/fedpd.py": "three ablations that are methods of their own in the paper",
    "report/figures/metrics.py": "all figures that need metrics alone",
    "simulation/costs.py": "one count of operations, by kinds of layers",
    "storage/run_dir.py": "one folder: lock, check, write",
    "storage/run_reader.py": "one folder, read with all that can be wrong in it",
}


def test_long_files_have_a_reason() -> None:
    lines = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    long = {name for name, count in lines.items() if count > MOST}

    assert long - REASONS.keys() == set(), "split these files by subject, or say why they are longer"
    assert REASONS.keys() - long == set(), "these files are short now: remove their reasons"
