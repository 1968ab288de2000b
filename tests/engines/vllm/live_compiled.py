"""What torch.compile's Inductor makes on CPU of vLLM's functions, run by test_functions.py.

On GPUs Inductor writes Triton in place of C++; what is fused, and where a value is rounded, is decided before, in its
lowerings, which both share. vLLM's own options of the compiler are not set, and shapes are dynamic.
"""

from __future__ import annotations

import os

# One process compiles: a pool of them would import torch as often.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer
from tests.engines.vllm.left_out import LEFT_OUT

with left_out(*LEFT_OUT.split()):
    from vllm.ir.ops import layernorm
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return layernorm.rms_norm.impls["native"].impl_fn(x, weight, eps)


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return layernorm.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, eps)


def _scaled_and_added(x: Tensor, shared: Tensor, scale: float) -> Tensor:
    """The lines of vLLM's MoERunner behind its custom op."""
    return shared + x * scale


norm, add_norm, silu_and_mul, turn, scaled_and_added = (
    torch.compile(function, dynamic=True)
    for function in (_norm, _add_norm, SiluAndMul.forward_native, ApplyRotaryEmb.forward_static, _scaled_and_added)
)


def rms_norm(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> dict[str, Tensor]:
    if residual is None:
        return {"output": norm(x, weight, eps)}
    output, summed = add_norm(x, residual, weight, eps)
    return {"output": output, "residual": summed}


def swiglu(x: Tensor) -> dict[str, Tensor]:
    return {"output": silu_and_mul(x)}


def rotary(x: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> dict[str, Tensor]:
    """x [T, H, D], k [T, G, D], cos and sin [T, D / 2] in their dtype."""
    return {"q": turn(x, cos, sin, not interleaved), "k": turn(k, cos, sin, not interleaved)}


def shared_add(x: Tensor, shared: Tensor, scale: float) -> dict[str, Tensor]:
    return {"output": scaled_and_added(x, shared, scale)}


if __name__ == "__main__":
    answer({f.__name__: f for f in (rms_norm, swiglu, rotary, shared_add)})
