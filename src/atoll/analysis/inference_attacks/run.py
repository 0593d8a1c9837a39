"""Run all attacks that suit a method."""

from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import TypeVar

import torch

from ...clients.dry_run import dry_run
from ...clients.tasks import ClientTask
from ...core.schema import tensors_of
from ...engine.setup import Setup
from ...errors import AtollError
from .base import AttackResult, ObservedUpload, UploadFilter
from .inversion import attack_updates
from .labels import attack_labels
from .membership import attack_membership, score_by_covariance, score_by_mean
from .model_copy import attack_outputs
from .reconstruction import attack_small_classes

T = TypeVar("T")


def run_attacks(setup: Setup, filters: Mapping[str, UploadFilter]) -> list[AttackResult]:
    """Attack the uploads of one round.

    Args:
        setup: configuration, method and clients.
        filters: upload filters by name; each one is attacked.

    Returns:
        A result for each attack that had an upload to attack.

    Raises:
        AtollError: labels are no classes.
    """
    if not setup.pool.problem.num_classes:
        raise AtollError(
            f"Attacks find out classes and their samples, but labels are {setup.pool.problem.labels}. "
            "Use data with classes."
        )
    observed = _observe(setup, filters)
    results = [
        *_for_each_filter(observed, lambda seen: attack_labels(seen, setup)),
        *_for_each_filter(observed, lambda seen: attack_small_classes(seen, setup)),
        *_for_each_filter(observed, lambda seen: attack_membership(seen, setup, score_by_covariance, "covariance")),
        *_for_each_filter(observed, lambda seen: attack_membership(seen, setup, score_by_mean, "means")),
        *_for_each_filter(observed, lambda seen: attack_outputs(seen, setup)),
        *_for_each_filter(filters, lambda upload_filter: attack_updates(upload_filter, setup)),
    ]
    return [f for f in results if f.tried]


def repeat_attacks(setup: Setup, name: str, make_filter: Callable[[], UploadFilter], draws: int) -> list[AttackResult]:
    """Attack the uploads of one round under several draws of a filter's noise.

    Args:
        setup: configuration, method and clients.
        name: name of the filter in the results.
        make_filter: makes the filter anew for each draw.
        draws: number of draws.

    Returns:
        For each attack the mean over draws, and their range if there are several.
    """
    trials = [run_attacks(setup, {name: make_filter()}) for _ in range(draws)]
    results = []
    for same in zip(*trials, strict=True):
        values = [value for result in same if (value := result.found[name]) is not None]
        found = {name: fmean(values) if values else None}
        ranges = {name: (min(values), max(values))} if len(values) > 1 else {}
        results.append(same[0]._replace(found=found, ranges=ranges))
    return results


def _observe(setup: Setup, filters: Mapping[str, UploadFilter]) -> dict[str, list[ObservedUpload]]:
    """Return the uploads of all clients after each filter, without uploads that contain no tensors."""
    method, pool = setup.method, setup.pool
    exchanges = list(dry_run(method, pool, setup.config.seed, clients=pool.clients()))
    observed: dict[str, list[ObservedUpload]] = {name: [] for name in filters}
    for name, upload_filter in filters.items():
        for e in exchanges:
            job, client = ClientTask(e.client, e.round, e.download), pool.client(e.client)
            with torch.no_grad():
                upload = upload_filter(job, client, e.upload)
                params = method.personal_params(e.download, e.upload, e.state, client)
            if tensors_of(upload):
                observed[name].append(ObservedUpload(job, client, upload, params))
    return observed


def _for_each_filter(targets: Mapping[str, T], attack: Callable[[T], list[AttackResult]]) -> Iterator[AttackResult]:
    """Run one attack on the target of each filter, and join the results in one result for each measure."""
    by_filter = {name: attack(target) for name, target in targets.items()}
    for parts in zip(*by_filter.values(), strict=True):
        found = {name: result.found[""] for name, result in zip(by_filter, parts, strict=True)}
        yield parts[0]._replace(tried=max(result.tried for result in parts), found=found)
