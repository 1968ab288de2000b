"""Where it starts, and how the error grows over the layers."""
