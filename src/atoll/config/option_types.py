"""Types of the options of runs for editors and type checkers; `Config` says what each option means."""

from collections.abc import Mapping, Sequence
from typing import TypedDict


class RunOptions(TypedDict, total=False):
    """The options of ``atoll.run``, ``run_compare`` and ``run_sweep`` besides method, data, models, metric and out."""

    data_dir: str | None
    data_digest: str | None
    task: str | None
    rows: int | None
    test_rows: int | None
    clients: int | None
    new_clients: int
    partition: str
    shift: str | None
    split: str
    public: int
    public_data: str | None
    transform: str
    standardise: str
    missing: str | None
    columns: str
    width: int | None
    adapter: str | Sequence[str]
    proxy: str
    shared_model: str | None
    server_model: str | None
    init: str
    rounds: int
    wait_free: bool
    until_download: bool
    rate: float
    schedule: str
    topology: str
    strikes: int
    max_norm: float | None
    robust: str | None
    sums: str
    drop: str | None
    slow: str | None
    stragglers: str | None
    deadline: float | None
    poison: str | None
    min_class_count: int
    cov_source: str | None
    dp: str | None
    dp_clip: float
    dp_rounds: int | None
    dp_seed: int | None
    optimiser: str | None
    lr: float | None
    lr_schedule: str | None
    epochs: float | None
    steps: int | None
    batch_size: int | None
    settings: Mapping[str, object]
    terms: str | Sequence[str]
    seed: int
    backend: str
    device: str
    workers: int | None
    store: str
    cache: int
    clock: str
    global_test: bool
    target: float | None
    target_of: str
    patience: int | None
    until: float | None
    eval_every: int
    checkpoint_every: int | None
    keep_models: bool
    track: str | Sequence[str]
