"""Jobs with faults that are drawn: `python -m tests.ranks.drawn`."""
