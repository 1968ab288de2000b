"""Both distributions over the whole vocabulary."""
