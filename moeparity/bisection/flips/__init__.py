"""Routing flips: where, from what, how near the cut, at what cost."""
