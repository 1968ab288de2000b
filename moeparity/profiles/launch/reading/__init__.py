"""Readers of launch files: each turns one way of writing into sources. Nothing that is read is ever run."""
