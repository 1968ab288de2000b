"""Written-out trials: whether each mixture that bisect runs is a recipe that somebody could run.

    OMP_NUM_THREADS=1 python -m benchmarks.written_out --recipes 30

Recipes are drawn by seed: values on random nodes of both sides, set by profiles, overlays, placements and by the
recipes' own lines, conditional ones also where they rest. Every trial (each toggle alone and restored, its parts,
swapped blocks, some subsets) is held, bit for bit, to a plain recipe that a second implementation writes from the two
YAML files and the names that the report prints, and that is run alone as a side of its own.

`draw` writes recipes; `sides` and `plain` are the second implementation, which knows nothing of how moeparity finds
differences, bundles or mixes them; `trials` runs both and compares.
"""
