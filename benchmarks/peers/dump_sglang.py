"""Dump one side of a case with SGLang's dumper, every module's inputs and outputs (`DUMPER_NON_INTRUSIVE_MODE=all`).

python -m benchmarks.peers.dump_sglang CASE SIDE CHECKPOINT TOKENS_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from sglang.srt.debug_utils.dumper import dumper

from benchmarks.peers.cases import case
from benchmarks.peers.programs import build, forward, tokens

name, side, checkpoint, folder = sys.argv[1:]
model = build(case(name), side, Path(checkpoint))
dumper.register_non_intrusive_dumper(model)
forward(model, tokens(Path(folder)))
dumper.step()
