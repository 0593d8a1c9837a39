"""A site's side of a deployment: its configuration, its worker, its part in a run, its own rules."""
