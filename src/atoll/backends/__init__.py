"""Run clients: in a loop, batched by vmap, in worker processes, or on a Ray cluster."""
