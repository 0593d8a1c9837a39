"""Feature shift: every client's rows are changed in a way of its own."""

import pytest
import torch

from atoll import run
from atoll.data.feature_shift import FeatureShift, read_shift
from atoll.errors import AtollError

CLIENTS = ("a", "b", "c")


def test_rotation_by_a_right_angle_moves_a_pixel_where_a_hand_would() -> None:
    image = torch.zeros(1, 1, 3, 3)
    image[0, 0, 0, 1] = 1.0  # the middle of the top row

    turned = FeatureShift("rotate", 90.0)._change(image, 1.0, torch.tensor(0))  # the level 1 is +90 degrees

    expected = torch.zeros(1, 1, 3, 3)
    expected[0, 0, 1, 0] = 1.0  # a quarter turn against the clock: the middle of the left column
    torch.testing.assert_close(turned, expected, atol=1e-6, rtol=0)


def test_noise_has_a_level_of_its_own_for_each_client() -> None:
    x = torch.zeros(3000, 4)

    changed = FeatureShift("noise", 2.0).apply(x, [1000] * 3, CLIENTS, seed=0, part="train").split(1000)

    levels = [part.std().item() for part in changed]
    assert all(0 < level < 2 for level in levels)
    assert max(levels) > 1.2 * min(levels)


def test_shift_of_a_client_depends_on_its_name_and_the_seed_alone() -> None:
    shift, x = FeatureShift("rotate", 45.0), torch.rand(6, 1, 8, 8)

    together = shift.apply(x, [2, 2, 2], CLIENTS, seed=0, part="train")[2:4]
    alone = shift.apply(x[2:4], [2], ["b"], seed=0, part="train")
    other = shift.apply(x[2:4], [2], ["b"], seed=1, part="train")

    assert torch.equal(together, alone)
    assert not torch.allclose(alone, other)


def test_run_with_a_shift_trains_on_changed_rows() -> None:
    options = {"clients": 3, "rounds": 1, "rows": 200, "partition": "iid"}

    plain, turned = run("local", **options), run("local", shift="rotate:90", **options)  # type: ignore[arg-type]

    assert plain.summary["digest"] != turned.summary["digest"]
    assert torch.equal(plain.pool.train.all.y, turned.pool.train.all.y)


@pytest.mark.parametrize("text", ["rotate", "rotate:0", "turn:3", "noise:x"])
def test_malformed_shift_is_refused(text: str) -> None:
    with pytest.raises(AtollError, match="--shift"):
        read_shift(text)


def test_rotation_of_a_table_is_refused() -> None:
    with pytest.raises(AtollError, match="shift rotate changes images, and the samples are table data"):
        run("local", (torch.rand(40, 3), torch.arange(40) % 2), shift="rotate:45", rounds=1)
