"""Dump one side of a case with msprobe's PrecisionDebugger.

python -m benchmarks.peers.dump_msprobe CASE SIDE CHECKPOINT TOKENS_FOLDER CONFIG
"""

from __future__ import annotations

import sys
from pathlib import Path

from msprobe.pytorch import PrecisionDebugger

from benchmarks.peers.cases import case
from benchmarks.peers.programs import build, forward, tokens

name, side, checkpoint, folder, config = sys.argv[1:]
debugger = PrecisionDebugger(config_path=config)
model = build(case(name), side, Path(checkpoint))
ids = tokens(Path(folder))
debugger.start(model=model)
forward(model, ids)
debugger.stop()
debugger.step()
