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


def size(n: float) -> str:
    """Format a number of bytes; 1 kB is 1,000 bytes."""
    return quantity(n, "B")


def quantity(n: float, unit: str) -> str:
    """Format a number with three digits and a prefix of its unit, such as `1.2 MB`."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= factor:
            return f"{n / factor:.3g} {prefix}{unit}"
    return f"{n:.3g} {unit}"
