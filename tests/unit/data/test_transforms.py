"""Transforms: presets, preparation, and augmentation that is reproducible sample by sample."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from atoll.core.prng import fold, key, uniform
from atoll.data.transforms import ERASE_AREA, Transform, preset
from atoll.errors import AtollError

ALL = Transform(mean=(0.5,), std=(0.5,), flip=True, erase=True, crop=4, turn=15.0, black=True)
EACH = [Transform(flip=True), Transform(erase=True), Transform(crop=4), Transform(turn=15.0), ALL]


def numbered(count: int, channels: int = 3, size: int = 16) -> Tensor:
    """Images whose pixels are all different and never 0."""
    return torch.arange(1.0, count * channels * size * size + 1).reshape(count, channels, size, size)


# ------------------------------------------------------------------------------------------------------------ prepare


def test_uint8_images_are_scaled_and_normalised() -> None:
    """Red 255 becomes (1 - 0.4914) / 0.2023 = 2.514088, green 0 becomes -0.4822 / 0.1994 = -2.418255."""
    x = np.zeros((1, 3, 32, 32), np.uint8)
    x[0, 0] = 255
    out = preset("plain", "cifar10", (3, 32, 32)).prepare(x)
    assert out.dtype == torch.float32
    assert out[0, 0, 5, 7].item() == pytest.approx(2.514088, abs=1e-5)
    assert out[0, 1, 0, 0].item() == pytest.approx(-2.418255, abs=1e-5)
    assert x.max() == 255  # the raw rows are left alone


def test_floats_stay_as_they_are_and_tokens_become_int64() -> None:
    scaled = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 1, 4, 4)
    transform = preset("plain", "mnist", (1, 4, 4))
    assert torch.equal(transform.prepare(scaled), torch.from_numpy(scaled))
    table = np.array([[1.5, 2.5]], np.float64)
    assert preset("liping_aug", "table.csv", (2,)).prepare(table).dtype == torch.float32
    tokens = preset("plain", "imdb", (3,)).prepare(np.array([[5, 0, 1]], np.int32))
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[5, 0, 1]]


def test_read_only_rows_can_be_prepared(recwarn: pytest.WarningsRecorder) -> None:
    x = np.zeros((1, 1, 4, 4), np.uint8)
    x.flags.writeable = False
    Transform().prepare(x)
    assert not recwarn.list


def test_border_is_black_after_normalisation() -> None:
    """28 by 28 grow to 32 by 32; black is (0 - 0.5071) / 0.2673 = -1.897119 in this code's statistics."""
    transform = preset("liping_aug", "mnist", (1, 28, 28))
    out = transform.prepare(np.full((1, 1, 28, 28), 255, np.uint8))
    assert out.shape == (1, 1, 32, 32)
    assert out[0, 0, 1, 16].item() == pytest.approx(-1.897119, abs=1e-5)
    assert out[0, 0, 2, 2].item() == pytest.approx((1 - 0.5071) / 0.2673, abs=1e-5)


def test_feddw_transposes_mnist() -> None:
    """A turn by 90 degrees against the clock and a flip upside down together swap rows and columns."""
    x = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    out = Transform(transpose=True).prepare(x)
    turned = torch.rot90(torch.from_numpy(x), 1, (2, 3)).flip(2)
    assert torch.equal(out, turned / 255)
    assert preset("feddw", "mnist", (1, 28, 28)).transpose
    assert not preset("feddw", "emnist:letters", (1, 28, 28)).transpose  # upright since it was loaded


# ------------------------------------------------------------------------------------------------------------ presets


@pytest.mark.parametrize(
    ("name", "data", "mean", "std"),
    [
        ("plain", "cifar10", 0.4914, 0.2023),
        ("plain", "cifar100@0-9", 0.5071, 0.2673),
        ("plain", "mnist", 0.1307, 0.3081),
        ("plain", "emnist:letters", 0.1736, 0.3317),
        ("plain", "own.npz", 0.5, 0.5),
        ("none", "cifar10", 0.0, 1.0),
        ("liping_aug", "cifar10", 0.485, 0.229),
        ("liping_aug", "cifar100", 0.5071, 0.2673),
        ("liping_aug", "mnist", 0.5071, 0.2673),
        ("feddw", "cifar10", 0.4914, 0.2023),
        ("feddw", "cifar100", 0.5071, 0.2673),
        ("feddw", "mnist", 0.1307, 0.3081),
        ("feddw", "fashion_mnist", 0.1307, 0.3081),
    ],
)
def test_presets_use_the_published_mean_and_deviation(name: str, data: str, mean: float, std: float) -> None:
    shape = (3, 32, 32) if "cifar" in data else (1, 28, 28)
    transform = preset(name, data, shape)
    assert (transform.mean[0], transform.std[0]) == (mean, std)


def test_presets_set_the_published_augmentations() -> None:
    aug = preset("liping_aug", "cifar10", (3, 32, 32))
    assert (aug.flip, aug.erase, aug.crop, aug.turn, aug.black, aug.border) == (True, True, 4, 0.0, False, 0)
    digits = preset("liping_aug", "mnist", (1, 28, 28))
    assert (digits.flip, digits.erase, digits.crop, digits.border) == (False, True, 4, 2)
    ten, hundred = (preset("feddw", name, (3, 32, 32)) for name in ("cifar10", "cifar100"))
    assert (ten.flip, ten.erase, ten.crop, ten.turn, ten.black) == (True, False, 4, 0.0, True)
    assert hundred.turn == 15.0


@pytest.mark.parametrize(
    "transform",
    [
        preset("plain", "cifar10", (3, 32, 32)),
        preset("none", "cifar10", (3, 32, 32)),
        preset("feddw", "mnist", (1, 28, 28)),
        preset("liping_aug", "imdb", (200,)),
    ],
)
def test_presets_without_augmentation_leave_batches_unchanged(transform: Transform) -> None:
    x = numbered(2)
    assert not transform.augments
    assert transform.augment(x, key(0)) is x


def test_unknown_preset_or_wrong_channels_are_refused() -> None:
    with pytest.raises(AtollError, match="Did you mean 'liping_aug'"):
        preset("liping", "cifar10", (3, 32, 32))
    with pytest.raises(AtollError, match="has 3 channels in its official form, but its images have 1"):
        preset("plain", "cifar10", (1, 32, 32))


# ------------------------------------------------------------------------------------------------------------ augment


@pytest.mark.parametrize("transform", EACH)
def test_same_key_gives_same_images(transform: Transform) -> None:
    x = numbered(32)
    before = x.clone()
    first, second, other = (transform.augment(x, k) for k in (key(1), key(1), key(2)))
    assert transform.augments
    assert first.shape == x.shape
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(x, before)


@pytest.mark.parametrize("transform", EACH)
def test_augmentation_of_an_image_does_not_depend_on_batch_size(transform: Transform) -> None:
    x = numbered(9)
    assert torch.equal(transform.augment(x, key(3))[:4], transform.augment(x[:4], key(3)))


@pytest.mark.parametrize("transform", EACH)
def test_vmap_over_clients_equals_a_loop(transform: Transform) -> None:
    x = numbered(12).reshape(3, 4, 3, 16, 16)
    keys = torch.stack([key(0, client) for client in range(3)])
    together = torch.func.vmap(transform.augment)(x, keys)
    alone = torch.stack([transform.augment(rows, k) for rows, k in zip(x, keys, strict=True)])
    assert torch.equal(together, alone)
    one_batch = torch.func.vmap(transform.augment, in_dims=(None, 0))(x[0], keys)
    assert torch.equal(one_batch[0], alone[0])


def test_half_of_the_images_are_flipped() -> None:
    """4,000 fair coins: deviation sqrt(1000) = 31.6, so 1,850 to 2,150 is almost five of them."""
    x = numbered(4000, 1, 4)
    out = Transform(flip=True).augment(x, key(0))
    flipped = (out == x.flip(-1)).flatten(1).all(1)
    kept = (out == x).flatten(1).all(1)
    assert (flipped ^ kept).all()
    assert 1850 < int(flipped.sum()) < 2150


def test_erased_rectangles_have_area_and_ratio_in_range() -> None:
    """Of 1,024 pixels, 4 to 20 % are 41 to 205; rounding moves each side by at most a half, and sides of up to
    sqrt(0.2 * 1024 * 2) = 20.2 pixels add at most (20.2 + 10.1 + 1) / 2 pixels. Ratio 1/2 to 2 likewise."""
    x = numbered(4000, 1, 32)
    gone = Transform(erase=True).augment(x, key(0))[:, 0] == 0
    erased = gone.flatten(1).any(1)
    assert 1850 < int(erased.sum()) < 2150
    rows, columns = gone.any(2).sum(1)[erased], gone.any(1).sum(1)[erased]
    area = gone.flatten(1).sum(1)[erased]
    assert torch.equal(area, rows * columns)  # full rectangles
    assert area.min() >= ERASE_AREA[0] * 1024 - 10
    assert area.max() <= ERASE_AREA[1] * 1024 + 16
    assert (area.float() / 1024).mean().item() == pytest.approx(0.12, abs=0.005)
    ratio = rows / columns
    assert ratio.min() > 0.4
    assert ratio.max() < 2.5
    assert ratio.log().mean().item() == pytest.approx(0.0, abs=0.05)  # tall as often as broad
    assert gone[erased].any(0).all()  # every pixel can be hit


def test_cropping_shifts_the_content_and_fills_with_the_mean_colour() -> None:
    x = numbered(600, 2, 8)
    out = Transform(crop=2).augment(x, key(0))
    seen = set()
    for image, moved in zip(x, out, strict=True):
        down, right = next(
            (down, right)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if torch.equal(moved, shifted(image, down, right))
        )
        seen.add((down, right))
    assert len(seen) == 25  # all shifts occur


def shifted(image: Tensor, down: int, right: int) -> Tensor:
    padded = torch.nn.functional.pad(image, [2] * 4)
    return padded[:, 2 + down : 10 + down, 2 + right : 10 + right]


def test_cropping_fills_with_black_if_requested() -> None:
    """Black in normalised units is -mean / std: -0.5 / 0.25 = -2 and -0.3 / 0.1 = -3."""
    transform = Transform(mean=(0.5, 0.3), std=(0.25, 0.1), crop=3, black=True)
    out = transform.augment(torch.ones(50, 2, 8, 8), key(0))
    assert sorted(out[:, 0].unique().tolist()) == pytest.approx([-2.0, 1.0])
    assert sorted(out[:, 1].unique().tolist()) == pytest.approx([-3.0, 1.0])


def test_rotation_keeps_the_centre_and_moves_the_rim_by_at_most_the_angle() -> None:
    """The pixel 15 above the centre of a 31 by 31 image may move sideways by 15 sin 15 degrees = 3.88, so by 4."""
    x = torch.zeros(500, 1, 31, 31)
    x[:, 0, 15, 15] = 1.0
    x[:, 0, 2, 14:17] = 2.0
    out = Transform(turn=15.0).augment(x, key(0))[:, 0]
    assert (out[:, 15, 15] == 1).all()
    columns = (out == 2).float().argmax(2)[(out == 2).any(2)] - 15
    assert columns.min() >= -math.ceil(13 * math.sin(math.radians(15))) - 2
    assert columns.max() <= math.ceil(13 * math.sin(math.radians(15))) + 2
    assert columns.min() < -1
    assert columns.max() > 1


def test_rotation_by_a_right_angle_is_exact() -> None:
    """A draw u turns by (2u - 1) times the limit, so the limit 90 / |2u - 1| makes it a right angle."""
    k = key(5)
    share = 2 * uniform(fold(k, 3), 1).item() - 1
    x = numbered(1, 2, 5)
    out = Transform(turn=90 / abs(share)).augment(x, k)
    assert torch.equal(out, torch.rot90(x, 1 if share > 0 else -1, (2, 3)))


def test_augmentations_run_in_order_flip_erase_crop() -> None:
    """Erased pixels move with the crop, so a combined augmentation equals the three steps one after the other."""
    x, k = numbered(20), key(4)
    steps = [Transform(flip=True), Transform(erase=True), Transform(crop=4)]
    expected = x
    for step in steps:
        expected = step.augment(expected, k)
    assert torch.equal(Transform(flip=True, erase=True, crop=4).augment(x, k), expected)
