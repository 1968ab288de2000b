"""Digests of the values of every node, which a baseline keeps."""
