"""Robust rules: their syntax, the weights that they use, and how far attackers move them."""

from math import sqrt

import pytest
import torch
from torch import Tensor

from atoll.aggregation import robust_rules
from atoll.aggregation.robust_estimators import weighted_mean
from atoll.aggregation.robust_rules import cap_weights, parse
from atoll.core.prng import fold, key, normal, uniform
from atoll.errors import AtollError


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def test_parse_returns_the_named_rule() -> None:
    assert parse("median") == robust_rules.Median()
    assert parse("geometric") == robust_rules.GeometricMedian()
    assert parse("trimmed:0.2") == robust_rules.TrimmedMean(0.2)
    assert (parse("krum:2"), parse("krum:2:1")) == (robust_rules.Krum(2), robust_rules.Krum(2, 1))
    assert parse("clip:1e-1") == robust_rules.Clip(0.1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mediam", "Did you mean 'median'?"),
        ("", "Known: clip, geometric, krum, median, trimmed"),
        ("median:3", "Write median, and nothing else"),
        ("trimmed", "Write trimmed:SHARE"),
        ("trimmed:0.5", "from 0 to 0.49"),
        ("trimmed:-0.1", "from 0 to 0.49"),
        ("trimmed:nan", "from 0 to 0.49"),
        ("trimmed:0.1:0.2", "Write trimmed:SHARE"),
        ("krum", "Write krum:F"),
        ("krum:1.5", "Write krum:F"),
        ("krum:-1", "Write krum:F"),
        ("krum:1:0", "Write krum:F"),
        ("clip:0", "above 0"),
        ("clip:inf", "above 0"),
        ("clip:long", "Write clip:NORM"),
    ],
)
def test_malformed_rule_message_shows_the_syntax(text: str, said: str) -> None:
    with pytest.raises(AtollError) as caught:
        parse(text)
    assert said in str(caught.value)


def test_cap_weights_limits_weights_to_the_median_of_positive_ones() -> None:
    """Of 1, 3, 4, 9 the lower median is 3; who claims nothing does not lower it, and a lie does not raise it."""
    assert cap_weights(doubles([9, 1, 4, 3])).tolist() == [3, 1, 3, 3]
    assert cap_weights(doubles([0, 0, 0, 5, 2, 7])).tolist() == [0, 0, 0, 5, 2, 5]
    assert cap_weights(doubles([1e30, 3, 4, 1e30])).tolist() == [4, 3, 4, 4]
    assert cap_weights(doubles([0, -1])).tolist() == [0, -1]


@pytest.mark.parametrize("clients", range(1, 30))
def test_capped_weights_give_byzantine_clients_at_most_twice_their_share(clients: int) -> None:
    """For any number of byzantine clients that claim huge weights."""
    for seed in range(20):
        honest = uniform(key(seed, clients), clients).double() * 100
        for byzantine in range(1, clients + 1):
            w = cap_weights(torch.cat([torch.full((byzantine,), 1e12, dtype=torch.double), honest[byzantine:]]))
            assert w[:byzantine].sum() <= 2 * byzantine / clients * w.sum() * (1 + 1e-12)


# -- the synthetic table ----------------------------------------------------------------------------------------------

CLIENTS, BYZANTINE, WIDTH = 20, 4, 64


def sketches(attack: str, seed: int) -> tuple[Tensor, Tensor]:
    """Prototypes of one class [20, 64] and the mean of the 16 honest ones: unit vectors with a spread of 0.3.

    Byzantine clients send minus ten times theirs, the prototype of another class, or their mean less 1.5 standard
    deviations.
    """
    k = key(seed, "sketch")
    truth = torch.nn.functional.normalize(normal(fold(k, 0), 2, WIDTH).double(), dim=1)
    x = truth[0] + 0.3 / sqrt(WIDTH) * normal(fold(k, 1), CLIENTS, WIDTH).double()
    honest = x[BYZANTINE:].mean(0)
    if attack == "signflip":
        x[:BYZANTINE] *= -10
    elif attack == "swap":
        x[:BYZANTINE] += truth[1] - truth[0]
    else:
        x[:BYZANTINE] = x[:BYZANTINE].mean(0) - 1.5 * x[:BYZANTINE].std(0, correction=0)
    return x, honest


def astray(text: str | None, attack: str) -> float:
    """How far an average of the poisoned prototypes is from the honest mean, over ten seeds."""
    found = []
    for seed in range(10):
        x, honest = sketches(attack, seed)
        w, centre = torch.ones(CLIENTS, dtype=torch.double), torch.zeros(WIDTH, dtype=torch.double)
        got = weighted_mean(x, w) if text is None else parse(text).combine(x, w, centre)
        found.append(float((got - honest).norm()))
    return sum(found) / len(found)


@pytest.mark.parametrize("attack", ["signflip", "swap", "alie"])
def test_four_poisoned_prototypes_of_twenty_move_the_geometric_median_least(attack: str) -> None:
    """By at most 0.11, where ten times the opposite moves the mean by 0.2 * 11 = 2.2."""
    by_mean, by_rule = astray(None, attack), astray("geometric", attack)
    others = [astray(text, attack) for text in ("median", "trimmed:0.2", "krum:4:1")]
    assert by_rule <= 0.11
    assert by_rule <= min(others)
    if attack == "signflip":
        assert by_mean == pytest.approx(2.2, abs=0.02)
    if attack == "swap":
        assert by_mean > 0.25
