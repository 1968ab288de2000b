"""Compiled kernels with a file that says how they are launched: run as PTX, probed, and compared with nodes of
plans.
"""
