"""Write numbers with their nouns in sentences."""

from collections.abc import Iterable, Sequence


def count(n: int, noun: str) -> str:
    """Return `1 round` or `1,000 rounds`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def count_range(numbers: Sequence[int], noun: str) -> str:
    """Return `3 rounds` or `3 to 5 rounds`."""
    return count(numbers[0], noun) if len(numbers) == 1 else f"{numbers[0]:,} to {count(numbers[-1], noun)}"


def number_range(numbers: Sequence[int]) -> str:
    """Return `3` or `3 to 5`, from the smallest to the largest number."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def join_numbers(numbers: Iterable[int]) -> str:
    """Return `3, 4, 5`."""
    return ", ".join(map(str, numbers))
