"""Helpers that know nothing of federated learning."""
