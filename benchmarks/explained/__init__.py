"""Patched programs explained from their traces alone: is each changed node named, and the choice or fault at it.

    python -m benchmarks.explained [--out FILE] [--only NAME] [--seed N]

Programs of transformers of several model types, with random weights, are patched in one layer: by faults of
`graphs/faults` and by faults that no file lists, by combinations of choices of numerics as torch code, by single ones,
or not at all. `faults.py`, `unlisted.py` and `choices.py` are fixed lists by someone who wrote no part of the search,
but for four faults; a seed draws models, layers, experts and sizes. Each program is captured; `bisect` with the trace
as its candidate and `explain` are told the checkpoint, the profile `hf-eager` and nothing else.
"""
