"""`moeparity flips --mine`: finds the prompts that are most likely to flip."""
