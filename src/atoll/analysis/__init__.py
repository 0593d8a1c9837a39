"""What the models that a run left look like inside: features, weights of heads, soft labels, enhanced images."""
