"""What may leave a client: the gate, differential privacy with its budget, and attacks that show what is left."""
