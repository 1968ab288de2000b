"""Weights, tokens and the machine, as they are found."""
