"""Where clients run: in a loop, batched by vmap, in processes, on a Ray cluster."""
