"""Run an experiment: build the setup, play the rounds, evaluate, keep the state, summarise."""
