"""Spectra and their divergences: by hand, and against torch's own transform."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from atoll.core.payloads import Params
from atoll.core.prng import key, normal
from atoll.methods._divergences import DIVERGENCES
from atoll.methods._fourier import count_bins, make_transform, next_smooth_length
from atoll.methods._spectrum import spectral_distance


def spectrum(v: Tensor) -> Tensor:
    """All bins of a vector, in the usual order."""
    t = make_transform(len(v), v.dtype)
    s, bins, out = t(v).abs(), t.bins(), torch.full_like(v, torch.nan)
    out[bins] = s
    out[-bins % len(v)] = s
    return out


def row(*values: float) -> Params:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def apart(student: Params, teacher: Params, divergence: str = "kl_sum1", tau: float = 1.0, **how: Any) -> float:
    return float(spectral_distance(teacher, list(teacher), divergence, tau, **{"pad": "exact"} | how)(student))


def slope(student: Params, teacher: Params, divergence: str, tau: float = 1.0) -> Tensor:
    of = spectral_distance(teacher, list(teacher), divergence, tau, pad="exact")
    out: Tensor = grad(of)(student)["w"]
    return out


ONE, TWO = row(1, 2, 3, 4), row(1, 2, 3, 5)

# ------------------------------------------------------------------------------------------------------------- spectra


@pytest.mark.parametrize(
    ("v", "bins"),
    [
        ([1, 2, 3, 4], [10, 2.828427, 2, 2.828427]),
        ([1, 0, 0, 0], [1, 1, 1, 1]),
        ([1, -1, 1, -1], [0, 0, 4, 0]),
        ([1, 2, 3, 4, 5], [15, 4.253254, 2.628656, 2.628656, 4.253254]),
    ],
)
def test_spectra_by_hand(v: list[float], bins: list[float]) -> None:
    """(1, 2, 3, 4): the sum is 10; 1 - 3 and 2 - 4 are the parts of bin 1: sqrt(4 + 4) = 2.828427; 1 - 2 + 3 - 4 = -2;
    bin 3 mirrors bin 1. A peak is flat, an alternating vector has one bin. (1, ..., 5): 5 / (2 sin(pi k / 5)).
    """
    torch.testing.assert_close(spectrum(torch.tensor(v).double()), torch.tensor(bins).double(), rtol=0, atol=1e-6)


def test_spectrum_fulfils_parsevals_theorem() -> None:
    """sum_k s_k^2 = d sum_j w_j^2: 100 + 8 + 4 + 8 = 120 = 4 * 30."""
    assert float(spectrum(ONE["w"]).square().sum()) == pytest.approx(120)


@given(st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_every_length_gives_what_torch_gives(length: int) -> None:
    v = normal(key(length), length).double()
    torch.testing.assert_close(spectrum(v), torch.fft.fft(v).abs())


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 12, 997, 1536, 1545])
@pytest.mark.parametrize("share", [0.01, 0.4, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_the_first_bins_and_their_gradient(length: int, share: float, divergence: str) -> None:
    """997 is prime and takes one step; 1536 (as 512 * 3) and 1545 (as 309 * 5) take two."""
    first = max(1, int(share * length))
    v, teacher = (normal(key(length, i), length).double() for i in range(2))
    v.requires_grad_()
    assert float(count_bins(make_transform(length, torch.float64), first).sum()) == first
    ours = spectral_distance({"w": teacher}, ["w"], divergence, first / length, pad="exact")({"w": v})
    theirs = plainly(divergence, *(torch.fft.fft(w).abs()[:first] for w in (v, teacher)))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(value, v)[0] for value in (ours, theirs)))


def plainly(divergence: str, s: Tensor, t: Tensor) -> Tensor:
    """A divergence of two spectra, term by term as it is defined."""
    if divergence == "kl_sum1":
        p, q = s / s.sum(), t / t.sum()
        return (p * (p / q).log()).sum()
    ratio = (s / t).log()
    return (s * ratio - s + t).mean() if divergence == "gen_kl" else (s * ratio).sum()


def test_single_precision_is_enough() -> None:
    v = normal(key(0), next_smooth_length(100_000))
    error = (spectrum(v) - torch.fft.fft(v.double()).abs()).abs().max()
    assert float(error) < 1e-5 * 100_000**0.5


def test_smooth_lengths() -> None:
    """11 173 962 = 2 * 3 * 397 * 4691 is the size of a ResNet-18; 11 197 440 = 2^10 * 3^7 * 5."""
    assert [next_smooth_length(n) for n in (1, 7, 11, 16, 17, 121, 11_173_962)] == [1, 8, 12, 16, 18, 125, 11_197_440]


# --------------------------------------------------------------------------------------------------------- divergences


def test_divergences_by_hand() -> None:
    """The student (1, 2, 3, 4) has the spectrum s = (10, 2.828427, 2, 2.828427), the teacher (1, 2, 3, 5) has
    t = (11, 3.605551, 3, 3.605551): sqrt(2^2 + 3^2) and 1 - 2 + 3 - 5 = -3.

    sum s log(s/t) = -0.953102 - 2 * 0.686612 - 0.810930 = -3.137255.
    Divided by 17.656854 and 21.211103 this is -0.177679 - log(17.656854 / 21.211103) = -0.177679 + 0.183400 = 0.005722.
    Adding the sums: -3.137255 - 17.656854 + 21.211103 = 0.416993, in the mean of four 0.104248.
    """
    assert apart(ONE, TWO, "raw") == pytest.approx(-3.137255, abs=1e-6)
    assert apart(ONE, TWO, "kl_sum1") == pytest.approx(0.00572151, abs=1e-8)
    assert apart(ONE, TWO, "gen_kl") == pytest.approx(0.10424820, abs=1e-8)
    assert 4 * apart(ONE, TWO, "gen_kl") == pytest.approx(0.41699281, abs=1e-8)


def test_truncation_by_hand() -> None:
    """0.4 of four bins are 2, rounded up: (10, 2.828427) and (11, 3.605551). The raw sum is -0.953102 - 0.686612.
    Divided by 12.828427 and 14.605551: -0.127819 + 0.129738 = 0.001919; dividing before cutting would give 0.040383.
    """
    assert apart(ONE, TWO, "raw", 0.4) == pytest.approx(-1.63971354, abs=1e-8)
    assert apart(ONE, TWO, "kl_sum1", 0.4) == pytest.approx(0.00191935, abs=1e-8)


def test_the_number_of_bins_is_not_a_matter_of_rounding() -> None:
    """0.07 * 100 is 7.000000000000001 in binary, but 7 bins: the mean divides the same sum by 7 as an exact 7 would."""
    s, t = ({"w": normal(key(i), 100).double()} for i in range(2))
    assert apart(s, t, "gen_kl", 0.07) == apart(s, t, "gen_kl", 0.0695)


def test_slopes_where_both_are_equal() -> None:
    """Zero for a divergence. The raw sum has slope 1 by every s_k there, hence by w_j the sum over k of
    cos(phase_k + 2 pi j k / 4): 1 + 2 cos(135 deg + 90 deg j) - (-1)^j = -1.41421, 0.58579, 1.41421, 3.41421.
    """
    assert not slope(ONE, ONE, "kl_sum1").any()
    assert not slope(ONE, ONE, "gen_kl").any()
    expected = torch.tensor([-1.41421, 0.58579, 1.41421, 3.41421]).double()
    torch.testing.assert_close(slope(ONE, ONE, "raw"), expected, rtol=0, atol=1e-5)


def test_scale() -> None:
    """Twice the weights, twice the spectrum: no difference once divided by sums; raw 2 log(2) * 17.656854 = 24.4776.
    The raw sum is negative wherever the student is smaller: p = (1, 1), q = (e, e) gives -2, and least at q / e.
    """
    double = row(2, 4, 6, 8)
    assert apart(double, ONE, "kl_sum1") == pytest.approx(0, abs=1e-12)
    assert apart(double, ONE, "raw") == pytest.approx(24.4776, abs=1e-4)
    e = 2.718281828459045
    assert apart(row(1, 0), row(e, 0), "raw") == pytest.approx(-2)
    assert slope(row(1, 0), row(e, 0), "raw").tolist() == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 0.02)])
def test_unrelated_weights(scales: tuple[float, float]) -> None:
    """Magnitudes of noise are Rayleigh: E[s log s] / E[s] - E[s log t] / E[s] of like variables is 1 - log 2."""
    s, t = ({"w": scale * normal(key(i), 2_000_000)} for i, scale in enumerate(scales))
    for tau in (0.4, 1.0):
        assert apart(s, t, tau=tau, pad="smooth") == pytest.approx(0.3069, abs=0.002)


@pytest.mark.parametrize(("noise", "value"), [(0.1, 0.0046), (0.01, 5e-5)])
def test_weights_nearby(noise: float, value: float) -> None:
    """About 0.46 times the square of the relative noise."""
    w = normal(key(0), 200_000)
    assert apart({"w": w + noise * normal(key(1), 200_000)}, {"w": w}, pad="smooth") == pytest.approx(value, rel=0.05)


def test_differences_of_a_millionth_survive_single_precision() -> None:
    """It is the difference of two larger numbers, which sums of single precision would give to seven digits."""
    w, other = normal(key(0), 200_000), normal(key(0), 200_000) + 0.001 * normal(key(1), 200_000)
    low, high = (apart({"w": other.to(kind)}, {"w": w.to(kind)}) for kind in (torch.float32, torch.float64))
    assert high == pytest.approx(5e-7, rel=0.1)
    assert low == pytest.approx(high, rel=1e-5)


@pytest.mark.parametrize("divergence", ["kl_sum1", "gen_kl"])
@pytest.mark.parametrize("apart_by", [1e-3, 1e-5])
def test_small_differences_keep_their_digits(divergence: str, apart_by: float) -> None:
    """Gradients of students that hardly differ from their teacher would be rounding errors of two large spectra."""
    teacher = normal(key(0), 20_000)
    student = teacher + apart_by * normal(key(1), 20_000)
    slopes = []
    for kind in (torch.float32, torch.float64):
        of = spectral_distance({"w": teacher.to(kind)}, ["w"], divergence)
        slopes.append(grad(of)({"w": student.to(kind)})["w"].double())
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 3e-5


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize(
    "pair", [([1, 1, 1, 1], [1, 2, 3, 4]), ([1, 2, 3, 4], [1, 1, 1, 1]), ([0, 0, 0, 0], [1, 2, 3, 4])]
)
def test_divergence_of_empty_frequency_bins_is_finite(divergence: str, pair: tuple[list[float], list[float]]) -> None:
    """Constant weights have one bin that is not 0; 0 log 0 counts as 0."""
    student, teacher = (row(*values) for values in pair)
    assert torch.isfinite(torch.tensor(apart(student, teacher, divergence)))
    assert torch.isfinite(slope(student, teacher, divergence)).all()


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("tau", [0.3, 0.8, 1.0])
def test_slopes_against_small_steps(divergence: str, tau: float) -> None:
    s, t = ({"w": normal(key(i), 1030).double()} for i in range(2))
    of = spectral_distance(t, ["w"], divergence, tau, pad="exact")
    assert torch.autograd.gradcheck(
        lambda w: of({"w": w}), s["w"].requires_grad_(), fast_mode=True, check_undefined_grad=False
    )


# -------------------------------------------------------------------------------------------------------------- models

PAIR = {"a": torch.tensor([[1.0], [2.0]]).double(), "b": torch.tensor([3.0, 4.0]).double()}
OTHER = PAIR | {"b": torch.tensor([3.0, 5.0]).double()}


def test_weights_stand_in_a_row() -> None:
    assert apart(PAIR, OTHER) == pytest.approx(apart(ONE, TWO), abs=1e-12)


def test_layers_by_hand() -> None:
    """Each by itself: (3, 1), (7, 1) and (3, 1), (8, 2): raw 7 log(7/8) + log(1/2) = -1.627867. Half of the bins of
    each are (3), (7) and (3), (8): 0.3 log(0.3 * 11/3) + 0.7 log(0.7 * 11/8) = 0.028593 - 0.026755 = 0.001838.
    """
    assert apart(PAIR, OTHER, "raw", scope="layer") == pytest.approx(-1.627867, abs=1e-6)
    assert apart(PAIR, OTHER, tau=0.5, scope="layer") == pytest.approx(0.001838, abs=1e-6)


def test_spectral_distance_follows_the_given_order_of_names() -> None:
    """Of three tensors: two that change places only turn the vector, which magnitudes do not notice."""
    student, teacher = ({n: normal(key(n, i), 4).double() for n in "abc"} for i in range(2))
    swapped = {n: student[n] for n in "cba"}
    value = float(spectral_distance(teacher, "abc")(student))
    assert float(spectral_distance(teacher, "abc")(swapped)) == value
    assert float(spectral_distance(teacher, "cba")(student)) != pytest.approx(value, rel=1e-3)


def test_padding_by_hand() -> None:
    """Seven weights, (1, 2, 3, 4, 0, 0, 0), fill eight places with one more zero."""
    long, longer = row(1, 2, 3, 4, 0, 0, 0), row(1, 2, 3, 4, 0, 0, 0, 0)
    teacher, padded = row(1, 2, 3, 5, 0, 0, 0), row(1, 2, 3, 5, 0, 0, 0, 0)
    assert apart(long, teacher, tau=0.4, pad="smooth") == pytest.approx(apart(longer, padded, tau=0.4))
    assert apart(long, teacher, tau=0.4) != pytest.approx(apart(longer, padded, tau=0.4), rel=1e-3)


@pytest.mark.parametrize("scope", ["vector", "layer"])
@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_vmap_over_students_and_teachers(divergence: str, scope: str) -> None:
    def both(student: Params, teacher: Params) -> tuple[Params, Tensor]:
        of = spectral_distance(teacher, ["a", "b"], divergence, 0.7, scope)
        value, slopes = torch.func.grad_and_value(of)(student)[::-1]
        return slopes, value

    students = {"a": normal(key(0), 3, 20, 30), "b": normal(key(1), 3, 7)}
    teachers = {"a": normal(key(2), 3, 20, 30), "b": normal(key(3), 3, 7)}
    slopes, values = vmap(both)(students, teachers)
    for i in range(3):
        one, value = both({n: v[i] for n, v in students.items()}, {n: v[i] for n, v in teachers.items()})
        torch.testing.assert_close(values[i], value)
        for name in one:
            torch.testing.assert_close(slopes[name][i], one[name])
