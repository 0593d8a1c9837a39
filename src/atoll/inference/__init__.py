"""Use trained models: open, predict, export, adapt to new clients."""
