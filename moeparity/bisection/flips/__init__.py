"""Routing flips: at which tokens and layers, where they come from, how near the cut, and what they cost."""
