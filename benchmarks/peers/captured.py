"""The pass of one side of a case under a capture, which `benchmarks/peers/moeparity_traces.py` compares."""

from __future__ import annotations

import sys
from pathlib import Path

import moeparity
from benchmarks.peers.cases import case
from benchmarks.peers.programs import build, forward, tokens

name, side, checkpoint, folder, out = sys.argv[1:]
model, ids = build(case(name), side, Path(checkpoint)), tokens(Path(folder))
# Of a part of a weight, transposed, digests alone do not tell whether it is another.
with moeparity.capture(out, save=("model*", "lm_head")):
    forward(model, ids)
