"""The pass of one side of a case, to be run under `moeparity capture`: of both sides, then `diff` and `explain`.

python -m benchmarks.peers.programs "no such attribute" checkpoints/quickstart pair
P="python -m benchmarks.peers.captured"
moeparity capture --out SIDE --save 'model*' --save lm_head -- $P "no such attribute" SIDE checkpoints/quickstart pair
moeparity diff reference candidate
moeparity explain candidate --checkpoint checkpoints/quickstart --node 'layers[2].moe.*'
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers.cases import case
from benchmarks.peers.programs import build, forward, tokens

name, side, checkpoint, folder = sys.argv[1:]
forward(build(case(name), side, Path(checkpoint)), tokens(Path(folder)))
