"""Searches over mixtures: what each toggle costs, which toggles are enough to restore, in which layers a cost arises.

A mixture has some toggles at the candidate's value and all others at the reference's. A search knows toggles by their
names, and gets the outcome of each mixture from a memo; there are no tensors here.
"""
