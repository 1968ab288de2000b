"""Fingerprints of weights that can be compared however a program fuses, stacks and cuts them."""
