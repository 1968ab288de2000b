"""Planted culprits: whether everyone to blame is named, by how much, and nobody else.

    OMP_NUM_THREADS=1 python -m benchmarks.planted --venv /tmp/peers --out docs/generated/planted.md

Two suites, run from the repository's root. *Decoys*: both sides of a small checkpoint differ in a dozen attributes, of
which one to four matter; an independent script fixes who and by how much, from every mixture of both sides, before
moeparity is asked. *Hidden*: the candidate is a transformers model of which one line was changed, run through `impl:`.
The peers of `benchmarks/peers` and the plain "first nonzero difference" get the same pairs. Cases and answers are kept
in a folder, so that a run that was stopped goes on; allow three hours on two cores.

Without moeparity: `cases` and `attributes` (what is drawn), `checkpoints`, `ops`, `program`, `factorial` (the plain
forward and all its mixtures), `truth` and `fix` (who is to blame), `patches`, `patching`, `submodules`, `hidden_cases`
(the patched models), `programs` and `worker` (the pairs as the peers get them). With it: `decoys`, `hidden`, `score`,
`peers`, `page`.
"""
