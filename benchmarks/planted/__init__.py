"""Planted culprits."""
