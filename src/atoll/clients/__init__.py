"""Clients as one machine holds them: data, state, their part of a round, evaluation, checks of uploads."""
