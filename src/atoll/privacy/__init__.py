"""Privacy of what leaves a client: disclosure control, differential privacy, budget."""
