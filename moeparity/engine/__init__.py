"""Lockstep execution: all variants walk the graph together, and equal work is done once."""
