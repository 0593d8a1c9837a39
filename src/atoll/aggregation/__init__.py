"""How a server combines uploads: weighted means, robust rules, sums in fixed point."""
