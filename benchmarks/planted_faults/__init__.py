"""Planted faults: what moeparity says of a candidate whose fault it was not told of.

    OMP_NUM_THREADS=1 python -m benchmarks.planted_faults --out docs/generated/planted-faults.md

Where `benchmarks.planted` asks for shares among attributes that the tool is told of, here the candidate runs functions
of a user's, alone or in place of regions: numbers that nobody listed, several choices at once, faults that touch one
token, one sequence, one micro-batch, one rare expert or padding only, NaN, faults that cancel, a function that is not
deterministic; behind legal roundings elsewhere, in several micro-batches. Every case is drawn from its seed, and its
truth is that of the planting, held to two forwards that are run alone and compared bit by bit (`truth`).

Plain torch, without moeparity: `plain` and `regions` (the functions), `spoilt` (what spoils them), `catalogue` (what
may be planted). `kinds`, `cases` and `conditions` draw, `files` writes what a user would write, `runs` and `truth` run
sides alone, `answer` reads the report and is the one file that knows its fields, `score` holds it to the truth,
`suite` does all of that for a seed, `page` writes.
"""
