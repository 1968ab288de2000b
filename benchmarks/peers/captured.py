"""The pass of one side of a case under a capture, which `benchmarks/peers/moeparity_traces.py` compares."""

from __future__ import annotations

import sys
from pathlib import Path

import moeparity
from benchmarks.peers.cases import case
from benchmarks.peers.programs import build, forward, tokens

name, side, checkpoint, folder, out = sys.argv[1:]
model, ids = build(case(name), side, Path(checkpoint)), tokens(Path(folder))
with moeparity.capture(out):
    forward(model, ids)
