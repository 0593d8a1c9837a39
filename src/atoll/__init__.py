"""Atoll: personalised and model-heterogeneous federated learning."""
