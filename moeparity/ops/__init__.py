"""The operations a graph is made of: one declaration per op here, one pure function per op in `kernels`.

Declarations import no torch, so plans can be made and printed without it.
"""
