"""Protect the uploads of clients: disclosure control, differential privacy, privacy budget."""
