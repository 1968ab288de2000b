"""Hooks that write one batch of a running trainer as a log that `moeparity metrics` and `moeparity tokens` read.

A trainer imports them, so they import nothing but the standard library, and they never end or change its step.
"""
