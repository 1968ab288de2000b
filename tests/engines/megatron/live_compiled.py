"""What Inductor, Megatron-LM's jit fuser, makes on CPU of its fused functions, run by test_functions.py.

On GPUs Inductor writes Triton in place of C++; what is fused, and where a value is rounded, is decided before, in its
lowerings, which both share.
"""

from __future__ import annotations

import os

# One process compiles: a pool of them would import torch as often.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

from megatron.core.fusions import fused_bias_swiglu
from torch import Tensor

from tests.engines.live import answer


def swiglu(x: Tensor) -> dict[str, Tensor]:
    return {"output": fused_bias_swiglu.swiglu(x)}


def weighted_swiglu(x: Tensor, scores: Tensor) -> dict[str, Tensor]:
    """scores [T]."""
    return {"output": fused_bias_swiglu.weighted_swiglu(x, scores.unsqueeze(1))}


if __name__ == "__main__":
    answer({f.__name__: f for f in (swiglu, weighted_swiglu)})
