"""Both sides compared with a run in fp64: which one is nearer to the exact values."""
