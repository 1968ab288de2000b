"""Runs in which nothing is wrong, and whether anybody is accused: `python -m benchmarks.explained.benign`."""
