"""What Flower starts: a server that conducts a run, and a client that only passes frames on."""
