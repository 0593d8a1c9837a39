"""Combine uploads on the server: weighted means, robust rules, sums in fixed point."""

from .averaging import mean, table_mean

__all__ = ["mean", "table_mean"]
