"""Searches among mixtures: what each toggle costs, what is enough to restore, where in the layers a cost is made.

They see toggles as names and mixtures through a memo; there are no tensors here.
"""
