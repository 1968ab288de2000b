"""Reductions over simulated ranks, bit for bit: which library adds which ranks in which order, and what it rounds.

Read `declaration.py`, then one library's file, then `execute.py`, the only file that touches tensors.
"""
