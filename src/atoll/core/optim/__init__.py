"""Optimisers: values that minimise a loss over mini-batches."""
