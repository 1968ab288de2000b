"""Runs that are kept in a folder of their own (`--run DIR`): listed, printed again, compared."""
