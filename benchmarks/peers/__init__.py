"""moeparity beside three tools that compare two runs on a CPU, on the same pairs of programs.

    OMP_NUM_THREADS=1 python -m benchmarks.peers --venv /tmp/peers --out docs/generated/peers.md

Run from the repository's root, with moeparity and transformers installed. The peers live in an environment of their
own, outside the repository, which the script makes when it is not there; `environment.py` has the pip commands, and
they are printed: the running torch and transformers, then `--no-deps sglang==0.5.23`, `mindstudio-probe`, and what the
two import. sglang pins another torch, hence `--no-deps`, and its dumper imports three modules of the serving engine,
hence a few lines of stand-ins on PYTHONPATH. Allow half an hour on two cores.

`cases.py` holds the pairs with their known culprits, `programs.py` makes them from transformers, `dump_*.py` and
`run_debug_mode.py` run inside the peers' environment, and one module per tool reads what that tool wrote.
"""
