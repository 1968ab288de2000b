"""Keeps the finished passes of a run on disk, so that a run that was killed can go on from them."""
