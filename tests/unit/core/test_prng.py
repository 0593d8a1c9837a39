"""Keys: independent streams, stable under padding and vmap, with the right moments."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import vmap

from atoll.core import prng
from atoll.core.prng import (
    bits,
    fold,
    key,
    keys,
    normal,
    normal_columns,
    permutation,
    randint,
    sample,
    seed_of,
    uniform,
)

MASK = 2**64 - 1


def mix(z: int) -> int:
    """The splitmix64 finaliser on unsigned Python integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=50, deadline=None)
def test_bits_are_splitmix(k: int) -> None:
    """Written down a second time with unbounded integers: two rounds of mixing on key + counter * golden ratio."""
    expected = [mix(mix((k + i * 0x9E3779B97F4A7C15) & MASK)) & (2**63 - 1) for i in range(5)]
    assert bits(torch.tensor(k), 5).tolist() == expected


def test_keys_are_the_same_everywhere() -> None:
    """The first 8 bytes of BLAKE2b of "int:0", unit separator, "str:a": a change would change every published run."""
    assert key(0, "a").item() == key(0, "a").item()
    assert key(0, "a").dtype == torch.int64
    assert key(0, "a").shape == ()
    from hashlib import blake2b

    digest = blake2b(b"int:0\x1fstr:a", digest_size=8).digest()
    assert key(0, "a").item() == int.from_bytes(digest, "little", signed=True)


def test_every_part_changes_the_key() -> None:
    keys = [
        key(),
        key(1),
        key("1"),
        key(1, 1),
        key(11),
        key("a", "b"),
        key("ab"),
        key("b", "a"),
        key(1, "a"),
        key("a", 1),
    ]
    assert len({k.item() for k in keys}) == len(keys)


def test_fold_of_different_values_gives_different_keys() -> None:
    k = key(0)
    folded = [fold(k, i).item() for i in range(-1, 1000)] + [
        fold(fold(k, i), j).item() for i in range(30) for j in range(30)
    ]
    assert len(set(folded)) == len(folded)
    assert k.item() not in folded
    assert fold(k, 2**62).item() != fold(k, 2**62 + 1).item()


def test_streams_are_independent() -> None:
    """Correlation of 20,000 normals: standard deviation 1 / sqrt(20,000) = 0.007, so 0.03 is beyond four of them."""
    k, n = key(7), 20_000
    streams = [k, fold(k, 0), fold(k, 1), fold(fold(k, 0), 0), fold(fold(k, 0), 1), key(8), k + 1]
    z = torch.stack([normal(s, n) for s in streams])
    correlation = torch.corrcoef(z) - torch.eye(len(streams))
    assert correlation.abs().max() < 0.03
    lagged = torch.corrcoef(torch.stack([z[0, :-1], z[0, 1:]]))[0, 1]
    assert abs(lagged) < 0.03


@pytest.mark.parametrize("draw", [bits, uniform, normal])
def test_longer_draws_begin_with_shorter_ones(draw: object) -> None:
    k = key(3)
    assert torch.equal(draw(k, 50)[:20], draw(k, 20))  # type: ignore[operator]
    assert torch.equal(draw(k, 50, 4)[:20], draw(k, 20, 4))  # type: ignore[operator]


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: fold(k, 5),
        lambda k: bits(k, 9),
        lambda k: uniform(k, 9),
        lambda k: normal(k, 9),
        lambda k: permutation(k, 9, 6),
    ],
)
def test_draws_under_vmap_equal_draws_without(draw: object) -> None:
    keys = torch.stack([key(i) for i in range(4)])
    assert torch.equal(vmap(draw)(keys), torch.stack([draw(k) for k in keys]))  # type: ignore[operator,arg-type]


def test_draw_leaves_the_key_unchanged_and_repeats() -> None:
    k = key(0)
    before, first = k.clone(), uniform(k, 3)
    assert torch.equal(k, before)
    assert torch.equal(uniform(k, 3), first)


@pytest.mark.parametrize(("raw", "edge"), [(0, 2.0**-24), (2**63 - 1, 1 - 2.0**-24)])
def test_uniform_never_touches_its_ends(raw: int, edge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """23 bits and a half: the least value is 0.5 / 2^23 = 2^-24, the largest 1 - 2^-24, both exact."""
    monkeypatch.setattr(prng, "bits", lambda k, *shape: torch.full(shape, raw))
    assert uniform(key(0), 1).item() == edge
    assert math.isfinite(normal(key(0), 1).item())


def test_uniform_moments() -> None:
    """100,000 draws: mean 1/2 +- 0.0009, variance 1/12 +- 0.0003; every tenth holds 10,000 +- 95."""
    u = uniform(key(1), 100_000)
    assert u.mean().item() == pytest.approx(0.5, abs=0.004)
    assert u.var().item() == pytest.approx(1 / 12, abs=0.002)
    assert torch.histc(u, 10, 0, 1).sub(10_000).abs().max() < 450


def test_normal_moments() -> None:
    """100,000 draws: mean 0 +- 0.003, variance 1 +- 0.005, skewness 0 +- 0.008, kurtosis 3 +- 0.016; 4.55 % > 2."""
    z = normal(key(2), 100_000).double()
    assert z.mean().item() == pytest.approx(0, abs=0.015)
    assert z.var().item() == pytest.approx(1, abs=0.02)
    assert (z**3).mean().item() == pytest.approx(0, abs=0.04)
    assert (z**4).mean().item() == pytest.approx(3, abs=0.1)
    assert (z.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.003)


def test_randint_covers_its_range_evenly() -> None:
    counts = randint(key(0), 7, 70_000).bincount()
    assert len(counts) == 7
    assert counts.sub(10_000).abs().max() < 450


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_permutation_puts_padding_last_and_keeps_the_order_of_rows(size: int, more: int, seed: int) -> None:
    k = key(seed)
    order = permutation(k, size)
    assert sorted(order.tolist()) == list(range(size))
    padded = permutation(k, size + more, size)
    assert torch.equal(padded[:size], order)
    assert padded[size:].tolist() == list(range(size, size + more))


def test_batched_draws_equal_draws_of_each_key() -> None:
    """Streams, draws and orders come in front of what is drawn, also where clients have rows of unlike number."""
    ks, n = torch.stack([key(i) for i in range(3)]), torch.tensor([5, 2, 4])
    each = list(zip(ks, n, strict=True))
    assert torch.equal(fold(ks, 4), torch.stack([fold(k, 4) for k in ks]))
    assert torch.equal(fold(ks, torch.arange(6)), torch.stack([fold(k, torch.arange(6)) for k in ks]))
    assert torch.equal(normal(ks, 2, 7), torch.stack([normal(k, 2, 7) for k in ks]))
    assert torch.equal(permutation(ks, 5, n), torch.stack([permutation(k, 5, m) for k, m in each]))


def test_permutations_are_uniform() -> None:
    """6,000 shuffles of 3: each of the six orders 1,000 times, +- 29."""
    orders = vmap(lambda k: permutation(k, 3))(torch.stack([fold(key(0), i) for i in range(6_000)]))
    counts = (orders * torch.tensor([9, 3, 1])).sum(1).bincount()
    counts = counts[counts > 0]
    assert len(counts) == 6
    assert counts.sub(1_000).abs().max() < 130


def test_seeds_fit_other_libraries() -> None:
    seeds = [seed_of(key(i)) for i in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= s < 2**31 for s in seeds)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_numpy_keys_give_the_draws_of_tensor_keys(k: int, i: int) -> None:
    tensor, array = torch.tensor([k, 5]), np.array([k, 5])
    for f in (
        lambda k: fold(k, i),
        lambda k: bits(k, 3, 2),
        lambda k: permutation(k, 7),
        lambda k: permutation(k, 7, 4),
    ):
        assert f(array).tolist() == f(tensor).tolist()
    several, sizes = np.arange(3), np.array([2.0, 9.0])
    assert fold(array, several).tolist() == fold(tensor, torch.arange(3)).tolist()
    assert permutation(array, 9, sizes).tolist() == permutation(tensor, 9, torch.tensor(sizes)).tolist()


def test_batched_keys_equal_single_keys() -> None:
    names = ["a", "b", "", "c1"]
    assert keys(0, "local", 3, each=names).tolist() == [int(key(0, "local", 3, name)) for name in names]
    assert keys(each=names).tolist() == [int(key(name)) for name in names]


@pytest.mark.parametrize(("size", "count"), [(1, 1), (10, 10), (10, 3), (1000, 10), (1000, 999), (20000, 1)])
def test_sample_is_the_beginning_of_the_permutation(size: int, count: int) -> None:
    for seed in range(20):
        k = key(seed, "sample")

        assert sample(k, size, count).tolist() == permutation(k, size)[:count].tolist()


def test_sample_looks_again_if_too_few_keys_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys lie in the upper half, so none is below the limit for 2 of 1,000."""
    monkeypatch.setattr(prng, "bits", lambda k, size: (2**62 + np.arange(size)[::-1])[None])

    assert sample(key(0), 1000, 2).tolist() == [999, 998]


def test_normal_columns_are_columns_of_the_whole_draw() -> None:
    columns = torch.tensor([6, 0, 3])

    assert torch.equal(normal_columns(key("z"), 9, 7, columns), normal(key("z"), 9, 7)[:, columns])
