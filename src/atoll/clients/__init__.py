"""Hold clients on one machine: their data and state, their work in a round, evaluation, and checks of uploads."""
