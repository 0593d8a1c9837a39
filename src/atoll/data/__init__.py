"""Data sets: load, partition among clients, split, transform."""
