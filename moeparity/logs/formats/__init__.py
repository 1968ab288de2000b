"""Readers of log files, one for each format; `registry` finds the one that fits a file."""
