"""Twelve launch files of servers with twelve of trainers, on two small models: from the files to a verdict.

    python -m benchmarks.launch_pairs [--folder FOLDER] [--pairs N] [--out PAGE]

The files in `files/` have the constructs that public examples have. Each pair and model is a case: `moeparity init`
reads the two files, one difference is planted in the recipe that it wrote, and `moeparity bisect` runs it. A case is
right where

- the trials that the report leaves out are those that cannot run, and no others, by `rule.py`, which knows engines and
  nothing of moeparity; or the pair is refused by name, with the same words where no weight can be read;
- the report names what was planted.

What is in FOLDER already is not run again.
"""
