"""The federated methods, one file each, and their registry."""
