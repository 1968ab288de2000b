"""A recipe at every combination of some values: `moeparity sweep`."""
