"""Prepare the rows of clients: tables by statistics of training rows, images by a transform, public rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..clients.pool import ClientRows, RowSplits
from ..config import Config
from ..core.method import AnyMethod
from ..data.dataset import Array
from ..data.feature_shift import read_shift
from ..data.federated_dataset import PARTS, FederatedDataset, Part
from ..data.loading import load
from ..data.seeding import stream
from ..data.subset import sample_public_rows
from ..data.tables.agreed_labels import with_target_unit
from ..data.tables.columns import recode
from ..data.tables.federated import Privately, fit_clients
from ..data.tables.preparations import Preparations
from ..data.tables.statistics_files import key_of, read_stored
from ..data.transforms import Transform
from ..errors import AtollError
from ..privacy.setup import table_noise
from ..typing import ClientId
from ..utils import secure_random
from ..utils.secure_random import Normal


def prepare_tables(
    config: Config, method: AnyMethod, federation: FederatedDataset
) -> tuple[FederatedDataset, Preparations]:
    """Fit the preparation of raw rows, and the unit of targets, on the training rows of clients.

    Raises:
        AtollError: an option excludes what clients would have to send or to share.
    """
    privately = None if config.dp is None else _privately(config, method, federation)
    preparations = fit_clients(federation, config.table_options, privately)
    if config.global_test and preparations and preparations.common is None:
        raise AtollError(
            "--global-test gives the test samples of all clients to each model, and with --standardise site or "
            "--missing site clients prepare samples differently. Leave it out, or use --standardise all and --missing "
            "all."
        )
    return with_target_unit(federation, preparations.agreed), preparations


def _privately(config: Config, method: AnyMethod, federation: FederatedDataset) -> Privately:
    def source(i: ClientId) -> Normal:
        return secure_random.secure if config.dp_seed is None else secure_random.seeded(config.dp_seed, i, "tables")

    noise = table_noise(config, method)
    kept = read_stored(Path(config.out), key_of(federation, config.table_options, noise)) if config.out else None
    return Privately(noise, source, kept)


def load_public_rows(config: Config, federation: FederatedDataset) -> Array | None:
    """Load public rows, set aside from the clients' data set or from another one, before the transform."""
    if config.public_data:
        other, shape = load(config.public_data, config.data_dir, config.task), federation.dataset.shape
        if columns := federation.dataset.columns:
            other = replace(other, x_train=recode(other.x_train, other.columns, columns, config.public_data))
        return sample_public_rows(other, config.public, shape, stream(config.seed, "guests"))
    return federation.rows(federation.public) if len(federation.public) else None


def build_row_splits(
    federation: FederatedDataset,
    transform: Transform,
    device: str = "cpu",
    preparations: Preparations = Preparations(),
    config: Config | None = None,
) -> RowSplits:
    """Return all clients' rows for training, validation and test, as tensors on ``device``.

    Args:
        federation: the clients and their rows.
        transform: preparation of images.
        device: device of the tensors.
        preparations: preparation of tables and texts.
        config: configuration with the simulated shift of features; None for rows of real sites, which are as they are.
    """
    shift = read_shift(config.shift) if config is not None and config.shift else None
    if shift is not None:
        shift.check(federation.dataset.kind)

    def build(part: Part) -> ClientRows:
        owned = federation.part(part)
        x = transform.prepare(preparations.apply(federation, owned))
        if shift is not None and config is not None:
            x = shift.apply(x, [len(rows) for rows in owned], federation.clients, config.seed, part)
        y = torch.from_numpy(federation.labels(np.concatenate(owned))).to(federation.dataset.problem.dtype)
        return ClientRows(x.to(device), y.to(device), [len(rows) for rows in owned])

    return RowSplits(*(build(part) for part in PARTS))
