"""Runs kept in folders of their own (`--run DIR`): listed, printed again, compared."""
