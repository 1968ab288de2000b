"""Compiled kernels, as a file says how they are launched: run through their PTX, probed, and held to nodes of plans."""
