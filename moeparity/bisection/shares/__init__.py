"""Shares, roles and the smallest fixes (`attribute: true`): which toggles are to blame, and by how much."""
