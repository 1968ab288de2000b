"""TensorRT-LLM's SwiGLU of dense and shared experts, in Triton: interpreted, and as PTX."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from moeparity.numerics import cuda
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random


def swiglu_case(rows: int, width: int, how: str) -> Case:
    """x * sigmoid(x), which no `logistic` is, in fp32, times up, and one rounding."""
    gate_up = 3 * random(rows, 2 * width, dtype=BF16, seed=width)
    gate, up = (half.float() for half in gate_up.chunk(2, -1))
    exp, divide = (cuda.triton_exp, cuda.div_full) if how == "ptx" else (torch.exp, torch.div)

    def activated(stored: torch.dtype) -> Outputs:
        silu = gate * divide(torch.ones_like(gate), 1 + exp(-gate))
        return {"output": (silu.to(stored).float() * up).to(BF16)}

    at = {"activation": FP32, "output": BF16, "logistic": "exp", "tensor": 1, "blocks": 0}
    return Case(
        program="live_tensorrt_llm",
        kernel="silu_and_mul_kernel",
        kind="swiglu",
        shapes=f"{rows} x {width} bf16",
        arguments={"gate_up": gate_up},
        ours=lambda: activated(FP32),
        other_outputs=lambda: activated(BF16),
        says="x * sigmoid(x), which no `logistic` is, times up in fp32, one rounding",
        recorded=(Seen(op="swiglu", at=at, blind=("tensor", "blocks", "logistic")),),
        blind="" if how == "ptx" else "exp, torch's on both sides",
    )


def cases(how: str) -> Iterator[Case]:
    """Rows of less than one program, of one, of several with a rest."""
    for rows, width in ((3, 704), (5, 1024), (4, 2880)):
        yield swiglu_case(rows, width, how)
