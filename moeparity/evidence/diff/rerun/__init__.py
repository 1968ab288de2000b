"""Runs recorded calls again on what they were recorded to read: in other legal orders of their sums, and in fp64."""
