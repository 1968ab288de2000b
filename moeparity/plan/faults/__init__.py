"""Faults: named rewrites of nodes, as data (`graphs/faults/`)."""
