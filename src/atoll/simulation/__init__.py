"""What a simulation adds to a run: devices and their time, counted work, faults, byzantine clients."""
