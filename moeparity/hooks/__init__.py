"""Hooks that an engine loads: a server writes its arguments as it resolved them, its steps and its tokens; a trainer
writes one batch as a log.

They import nothing but the standard library. What goes wrong in them is written down, and the engine goes on.
"""
