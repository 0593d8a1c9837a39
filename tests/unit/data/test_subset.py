"""Fewer training or test rows of every client."""

import numpy as np
import pytest

from atoll.data.dataset import Dataset
from atoll.data.federate import federate
from atoll.data.federated_dataset import FederatedDataset
from atoll.data.subset import keep_rows
from atoll.errors import AtollError


def federation(per_class: tuple[int, ...], clients: int = 2, split: str = "client_811") -> FederatedDataset:
    y = np.repeat(np.arange(len(per_class)), per_class)
    x = np.arange(len(y), dtype=np.float32)[:, None]
    data = Dataset("rows", "table", x, y, x[:0], y[:0], tuple(map(str, range(len(per_class)))))
    return federate(data, clients, "iid", split)


def draw(whole: FederatedDataset, rows: int | None = None, test_rows: int | None = None) -> FederatedDataset:
    return keep_rows(whole, rows, test_rows, np.random.default_rng(0))


def sizes(made: FederatedDataset) -> tuple[list[int], list[int], list[int]]:
    train, val, test = ([len(rows) for rows in part] for part in (made.train, made.val, made.test))
    return train, val, test


def test_rows_are_cut_by_client_and_part_in_proportion() -> None:
    """100 rows of two classes, 50 for each of two clients: 40, 5 and 5. Of 90 training rows, 18 stay.

    Each client keeps 9 of its 45 rows; 9 * 5 // 45 = 1 of them for validation.
    """
    whole = federation((50, 50))

    fewer = draw(whole, rows=18)

    assert sizes(whole) == ([40, 40], [5, 5], [5, 5])
    assert sizes(fewer) == ([8, 8], [1, 1], [5, 5])
    assert fewer.counts().tolist() == [[4, 4], [4, 4]]


def test_kept_rows_belong_to_the_same_client_and_part() -> None:
    whole = federation((30, 30, 30), clients=3)

    fewer = draw(whole, rows=30, test_rows=6)

    for part in ("train", "val", "test"):
        for kept, owned in zip(fewer.part(part), whole.part(part), strict=True):  # type: ignore[arg-type]
            assert set(kept.tolist()) <= set(owned.tolist())


def test_test_rows_are_cut_only_by_their_own_option() -> None:
    whole = federation((50, 50))

    fewer = draw(whole, test_rows=4)

    assert sizes(fewer) == ([40, 40], [5, 5], [2, 2])


@pytest.mark.promise("Data", "`--rows N` keeps at least one sample of every class.")
def test_classes_survive_a_cut_that_proportion_alone_would_deny_them() -> None:
    """Of 95, 3 and 2 rows of three classes, 12 rows in proportion would be 11.4, 0.36 and 0.24."""
    whole = federation((95, 3, 2))

    fewer = draw(whole, rows=12)

    assert (fewer.counts().sum(0) > 0).all()
    assert sum(map(len, fewer.train)) + sum(map(len, fewer.val)) == 12


def test_another_cut_has_another_name() -> None:
    whole = federation((50, 50))

    names = {whole.name, draw(whole, rows=18).name, draw(whole, rows=20).name, draw(whole, test_rows=4).name}

    assert len(names) == 4


@pytest.mark.parametrize("rows", [1, 91])
def test_refuses_fewer_rows_than_clients_and_more_than_there_are(rows: int) -> None:
    with pytest.raises(AtollError, match="--rows 2 to 90"):
        draw(federation((50, 50)), rows=rows)
