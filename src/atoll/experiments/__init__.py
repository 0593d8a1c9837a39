"""Several runs as one experiment: comparisons, sweeps, the tables of papers."""
