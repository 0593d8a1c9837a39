"""Advice on the learning rate of a run that diverged."""

import pytest

from atoll.engine.divergence import advise_on_rate


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"method": "fedavg", "lr": 5.0}, "Try a smaller --lr than 5."),
        ({"method": "ditto"}, "Try a smaller --lr than 0.01."),
        # --lr sets the outer steps alone, whatever their rate.
        (
            {"method": "pfedme", "lr": 0.001, "settings": {"personal_optim.lr": 0.9}},
            "Its longest steps have the rate personal_optim.lr = 0.9, which --lr does not set: "
            "try --set personal_optim.lr=0.09.",
        ),
        ({"method": "pfedme", "lr": 2.0}, "Try a smaller --lr than 2."),
        # Momentum of 0.9 makes steps ten times as long: those of clients are longer than the server's.
        ({"method": "fedtgp", "lr": 0.01, "settings": {"server.lr": 0.05}}, "Try a smaller --lr than 0.01."),
        (
            {"method": "fedtgp", "lr": 0.01, "settings": {"server.lr": 0.2}},
            "Its longest steps have the rate server.lr = 0.2, which --lr does not set: try --set server.lr=0.02.",
        ),
    ],
)
def test_advice_names_the_rate_with_the_longest_steps(config: dict[str, object], expected: str) -> None:
    assert advise_on_rate(config) == expected
