"""`moeparity sweep`: a recipe at every combination of some values."""
