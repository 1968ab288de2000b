"""Reductions over simulated ranks, bit for bit: which library adds which ranks in which order and rounds where.

Read `declaration.py`, then one library's file, then `execute.py`, which is the only place that touches tensors.
"""
