"""Implement the federated methods, one file each, and find them by name."""
