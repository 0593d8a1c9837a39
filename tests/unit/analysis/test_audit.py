"""The audit lists every field that a client sends or receives."""

from pathlib import Path
from typing import Any

import pytest
from support import small_runs
from support.hospital_tables import write_folder

from atoll.analysis.audit import Item, audit, audit_statistics
from atoll.clients.dry_run import dry_run
from atoll.config import Config
from atoll.core.payloads import nbytes
from atoll.engine.setup import build_setup
from atoll.methods import _registry

METHODS = sorted(_registry.methods())


def audited(method: str, **options: Any) -> list[Item]:
    setup = build_setup(Config(method, **{"clients": 3, "partition": "iid", "epochs": 1, **options}))
    return audit(setup.method, setup.pool, setup.config.seed)


def by_field(items: list[Item]) -> dict[tuple[str, str], Item]:
    return {(item.direction, item.field): item for item in items}


def test_audit_of_fedavg_matches_hand_computed_sizes() -> None:
    """Logistic regression on 64 inputs: 64 * 10 + 10 floats in two tensors; up also one float for n_k."""
    items = by_field(audited("fedavg", models=("linear",)))
    assert items["down", "params"][4:6] == ("2 tensors, 650 values", 2600)
    assert items["up", "params"][4:6] == ("2 tensors, 650 values", 2600)
    assert items["up", "n"][4:6] == ("[]", 4)
    assert items["down", "extra"][4:6] == ("–", 0)
    assert items["up", "n"].meaning == "n_k, the number of training samples"
    assert (items["up", "params"].role, items["up", "n"].role, items["up", "extra"].role) == ("model", "weight", "")


def test_statistics_of_columns_are_listed_with_their_bytes(tmp_path: Path) -> None:
    """Four columns: 4 int64 counts, 4 float64 sums and 4 sums of squares; the number of rows takes 8 bytes."""
    data = f"{write_folder(tmp_path)}?label=outcome"
    made = build_setup(Config("fedavg", data=data, partition="natural"))

    items = by_field(audit_statistics(made.preparations))

    assert [items["up", name].bytes for name in ("rows", "known", "total", "squares")] == [8, 32, 32, 32]
    assert items["down", "vocabulary"].bytes == len('{"colour":{"blue":99,"green":99,"grey":99,"red":99}}')
    assert items["up", "known"].role == "count"
    sent = made.preparations.sent.values()
    assert sum(item.bytes for (way, _), item in items.items() if way == "up") == max(map(nbytes, sent))
    digits = build_setup(Config("fedavg", clients=3, partition="iid"))
    assert audit_statistics(digits.preparations) == []


def test_class_table_is_sent_with_labels_of_held_classes() -> None:
    """Two classes of ten, 64 features: the prototypes are 2 x 64 floats, with two counts and two labels (int32)."""
    items = by_field(audited("fedproto", models=("linear",), partition="pathological:2", clients=5))
    table = next(item for (way, _), item in items.items() if way == "up" and item.shape == "[2, 64]")
    assert table.bytes == 2 * 64 * 4
    counts = next(item for (way, _), item in items.items() if way == "up" and "labels" in item.shape)
    assert counts.shape == "[2] + 2 labels"
    assert counts.bytes == 2 * 4 + 2 * 4


@pytest.mark.parametrize("name", METHODS)
def test_audited_fields_sum_to_the_bytes_sent_and_have_meanings(name: str) -> None:
    setup = small_runs.setup(name, clients=3, partition="iid")
    items = audit(setup.method, setup.pool, 0)
    second = [e for e in dry_run(setup.method, setup.pool, 0, rounds=2) if e.round.t == 1]
    for way in ("down", "up"):
        travelling = sum(nbytes(e.download if way == "down" else e.upload) for e in second)
        assert sum(item.bytes for item in items if item.direction == way) == travelling
    assert all(item.meaning for item in items)


def test_audit_lists_fields_of_a_regulariser() -> None:
    plain, more = by_field(audited("fedavg")), by_field(audited("fedavg", terms=("dw",)))
    assert plain["up", "extra"].bytes == 0
    assert more["up", "extra"].bytes > 0
    assert more["down", "extra"].bytes > 0


def test_each_architecture_is_listed() -> None:
    items = audited("fedproto", models=("mlp:hidden=8", "mlp:hidden=16"), width=8)
    assert {item.model for item in items} == {"mlp:hidden=8", "mlp:hidden=16"}
    assert {item.exchange for item in items} == {0}
