"""Parity as a check: recipes and logs compared with what they expect and with a lock, for a terminal, CI and pytest."""
