"""How requests travel between server and sites: frames, requests with time limits, Flower."""
