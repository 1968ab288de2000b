"""Parity as a check: recipes and logs held to what they expect and to a lock, for a terminal, CI and pytest."""
