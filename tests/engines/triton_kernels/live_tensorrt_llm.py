"""TensorRT-LLM's SwiGLU in Triton, run without a GPU (`backend`).

It is launched as `trtllm::silu_and_mul` does (custom_ops/torch_custom_ops.py): a program for 1024 numbers of a row.
"""

from __future__ import annotations

from tests.engines.triton_kernels import backend  # isort: skip
import torch
import triton
from torch import Tensor

from tests.engines.triton_kernels.alone import engine

MODULE = "tensorrt_llm._torch.modules.swiglu"
TILE = 1024

with engine((MODULE,), values={}, absent=()):
    from tensorrt_llm._torch.modules import swiglu as kernels


def swiglu(gate_up: Tensor) -> dict[str, Tensor]:
    """gate_up [M, 2I] -> [M, I]."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    output = torch.empty(rows, width, dtype=gate_up.dtype)
    plain = {"swiglu_limit": 0.0, "swiglu_alpha": 1.0, "swiglu_beta": 0.0, "HAS_O_SCALE": False}
    with backend.torchs():
        kernels.silu_and_mul_kernel[(rows, triton.cdiv(width, TILE))](
            output, output.stride(0), None, gate_up, gate_up.stride(0), width,
            **plain, HAS_SWIGLU_LIMIT=False, BLOCK_SIZE=TILE,
        )  # fmt: skip
    return {"output": output}


if __name__ == "__main__":
    backend.answer({"swiglu": swiglu})
