"""Both sides' distributions over the whole vocabulary, compared."""
