"""Run an experiment: build the setup, run the rounds, evaluate, keep the state, summarise."""
