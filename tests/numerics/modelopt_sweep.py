"""ModelOpt's Triton kernel for NVFP4's scale sweep, run in Triton's interpreter.

    python -m tests.numerics.modelopt_sweep BLOCKS.safetensors OUT.safetensors

Reads `blocks` [blocks, 16], writes `magnitudes` fp32 [blocks]. In a process of its own, since Triton reads
TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from safetensors.torch import load_file, save_file

_AT_ONCE = 16
sweep: Any = importlib.import_module("modelopt.torch.kernels.quantization.gemm.nvfp4_fp8_sweep")


def main(source: str, out: str) -> None:
    """Launch the kernel that the library tunes, without its tuning."""
    blocks = load_file(source)["blocks"]
    magnitudes, whole = torch.empty(len(blocks)), blocks.abs().max().float().reshape(1)
    candidates = sweep.fp8_scale_candidates().float()
    sizes = {"BLOCK_SIZE": blocks.shape[1], "NUM_CANDIDATES": len(candidates), "BLOCKS_PER_PROGRAM": _AT_ONCE}
    launch = sweep._fp8_scale_sweep_kernel.fn[(-(-len(blocks) // _AT_ONCE),)]
    launch(blocks.flatten(), candidates, whole, magnitudes, len(blocks), **sizes)
    save_file({"magnitudes": magnitudes}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
