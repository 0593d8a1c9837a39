"""Describe the partitions of the data among clients that runs used."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..storage.run_reader import Run
from . import pictures
from .figures.base import title
from .plots import holdings as holdings_chart
from .wording import join_numbers, number_range


@dataclass(frozen=True)
class PartitionSection:
    """The section of a report on one partition of the data."""

    title: str
    picture: pictures.Picture
    totals: str
    open: bool


def partition_sections(runs: Sequence[Run]) -> list[PartitionSection]:
    """Return a section for each partition; sections of further seeds of a setting are closed."""
    seen: set[str] = set()
    found = []
    for i, members in enumerate(group_by_partition(runs)):
        name = title(members[0].summary)
        found.append(_section(members, f"h{i}", is_open=name not in seen))
        seen.add(name)
    return found


def group_by_partition(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs that share a partition of the data."""
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(str(run.holdings["name"]), []).append(run)
    return list(by_name.values())


def partition_title(runs: Sequence[Run]) -> str:
    """Return setting and seeds of runs that share a partition."""
    seeds = sorted({run.seed for run in runs})
    span = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
    listed = number_range(seeds) if span else join_numbers(seeds)
    return f"{title(runs[0].summary)}, {'seed' if len(seeds) == 1 else 'seeds'} {listed}"


def _section(runs: Sequence[Run], name: str, is_open: bool) -> PartitionSection:
    holdings = runs[0].holdings
    train, clients, classes = holdings["train"], holdings["clients"], holdings["classes"]
    group = runs[0].problem.group
    rows = {part: sum(map(sum, holdings[part])) for part in ("train", "val", "test")}
    held = [sum(1 for n in row if n) for row in train]
    # Sites of a deployment do not report classes.
    of_classes = f" of {number_range(held)} of {len(classes)} {runs[0].problem.groups}" if len(classes) > 1 else ""
    return PartitionSection(
        title=partition_title(runs),
        picture=pictures.draw_picture(lambda width: holdings_chart(train, clients, classes, width, group=group), name),
        totals=(
            f"{rows['train']:,} training, {rows['val']:,} validation and {rows['test']:,} test samples. "
            f"A client holds {number_range(list(map(sum, train)))} training samples{of_classes}."
        ),
        open=is_open,
    )
