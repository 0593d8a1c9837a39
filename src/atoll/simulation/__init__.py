"""Simulate devices and their time, count work, and inject faults and byzantine clients into a run."""
