"""Good inputs changed at random, given to the command line as a user would: no answer that is not true, and no crash.

`python -m tests.hostile --minutes N` looks for as long as it is told; the suite runs the same with fixed seeds.
"""
