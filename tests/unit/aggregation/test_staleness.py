"""The weight of stale uploads, by the equations of FedBuff and FedAsync."""

import pytest
import torch
from torch import Tensor

from atoll.aggregation.staleness import StalenessWeight, is_discounted
from atoll.core.payloads import Params, Role, about, payload
from atoll.core.schema import constraints_of, declared_constraints
from atoll.methods.fedgh import FedGH
from atoll.methods.fedproto import FedProto


@payload
class Sent:
    params: Params = about("the model")


@payload
class Upload:
    params: Params = about("the trained model", role=Role.MODEL)
    change: Params = about("a change of the model", role=Role.CHANGE, of="params")
    table: Tensor = about("a row for each class [C, d]", role=Role.CLASS_TABLE, rows="rows")
    rows: Tensor = about("rows of each class [C]", role=Role.COUNT)
    n: Tensor = about("number of rows", role=Role.WEIGHT)


def model(value: float) -> Params:
    return {"w": torch.tensor([value]), "buffers.seen": torch.tensor([7])}


def discounted(weight: StalenessWeight, staleness: int) -> Upload:
    """The upload of a client that started from 1 and trained to 2, where the server stands at 3 now."""
    upload = Upload(model(2.0), {"w": torch.tensor([2.0])}, torch.ones(2, 1), torch.tensor([8.0, 2.0]), torch.tensor(9))
    made = weight.discount(upload, staleness, Sent(model(1.0)), Sent(model(3.0)), declared_constraints(Upload))
    assert isinstance(made, Upload)
    return made


def test_fedbuff_adds_the_weighted_update_to_the_model_of_now() -> None:
    """w(3) = 4^-0.5 = 1/2. Model: 3 + 1/2 (2 - 1) = 3.5. Change: 1/2 2 = 1. Counts: 1/2 (8, 2) = (4, 1)."""
    made = discounted(StalenessWeight(0.5), 3)

    assert made.params["w"].tolist() == [3.5]
    assert made.change["w"].tolist() == [1.0]
    assert made.rows.tolist() == [4.0, 1.0]
    assert made.table.tolist() == [[1.0], [1.0]]
    assert (made.n.tolist(), made.params["buffers.seen"].tolist()) == (9, [7])


def test_fedasync_mixes_the_models() -> None:
    """alpha w(1) = 0.6 / 2 = 0.3: (1 - 0.3) 3 + 0.3 2 = 2.7."""
    made = discounted(StalenessWeight(1.0, mixing=0.6), 1)

    assert made.params["w"].tolist() == pytest.approx([2.7])


def test_constant_weight_moves_the_whole_update() -> None:
    """w = 1: 3 + (2 - 1) = 4."""
    assert discounted(StalenessWeight(0.0), 3).params["w"].tolist() == [4.0]


def test_fresh_upload_is_full_unless_models_are_mixed() -> None:
    assert StalenessWeight().is_full(0)
    assert not StalenessWeight().is_full(1)
    assert not StalenessWeight(mixing=0.5).is_full(0)


def test_class_tables_count_only_with_numbers_of_rows() -> None:
    """FedProto sends numbers of rows with its prototypes, FedGH only which classes a client has."""
    assert is_discounted(constraints_of(FedProto()))
    assert not is_discounted(constraints_of(FedGH()))
