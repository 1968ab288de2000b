"""Both sides against an fp64 run: which one is nearer the truth."""
