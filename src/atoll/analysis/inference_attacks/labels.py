"""Infer the label distribution of a client."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.schema import tensors_of
from ...engine.setup import Setup
from .base import AttackResult, ObservedUpload, mean_result, read_statistics


def attack_labels(observed: Sequence[ObservedUpload], setup: Setup) -> list[AttackResult]:
    """Read labels from uploaded counts or markers, otherwise estimate them from the change of the head."""
    exact, distance, uniform = [], [], []
    for seen in observed:
        truth, sent = seen.counts, read_statistics(seen.upload, setup)
        guess = sent.counts if sent.counts is not None else sent.held if sent.held is not None else _guess(seen)
        exact.append(float(sent.counts is not None and torch.equal(sent.counts.double(), truth.double())))
        flat = torch.ones_like(truth)
        distance.append(_distance(_shares(guess if guess is not None else flat), _shares(truth)))
        uniform.append(_distance(_shares(flat), _shares(truth)))
    return [
        mean_result("label histogram", "share of clients whose counts are known exactly", exact),
        mean_result(
            "label guess", "distance of the guessed from the true distribution (0: equal, 1: disjoint)", distance
        ),
        mean_result("blind label guess", "the same distance for a guess of equal shares", uniform),
    ]


def _guess(seen: ObservedUpload) -> Tensor | None:
    """Return how much training raised the output of each label, which grows with the number of its rows."""
    sent, received = tensors_of(seen.upload), tensors_of(seen.task.download)
    classes = seen.client.num_classes
    for end in ("head.bias", "head.weight"):
        for name in sent:
            if name.endswith(end) and name in received and len(sent[name]) == classes:
                rise = (sent[name] - received[name]).reshape(classes, -1).sum(1)
                return rise - rise.min()
    return None


def _shares(v: Tensor) -> Tensor:
    v = v.double()
    return v / v.sum() if float(v.sum()) > 0 else torch.full_like(v, 1 / len(v))


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the total variation distance of two distributions."""
    return float((a - b).abs().sum()) / 2
