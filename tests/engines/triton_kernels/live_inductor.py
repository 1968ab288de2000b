"""What Inductor makes of vLLM's functions on an H100, run by cases of `by_inductor`.

torch's Inductor is that of this environment (2.13.0; vLLM 0.33.0 asks for 2.14.0), Triton 3.8.0. vLLM hands it whole
stretches between attention and custom ops, with horizontal fusion; here each function is compiled by itself.
"""

from __future__ import annotations

from tests.engines.triton_kernels import backend, inductor  # isort: skip
import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.vllm.left_out import LEFT_OUT

with left_out(*LEFT_OUT.split()):
    from vllm.ir.ops import layernorm
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb


def by_launch(outputs: list[list[Tensor]], *names: str) -> dict[str, Tensor]:
    """The outputs by name; every launch that Inductor would try gave the same."""
    first, *others = outputs
    assert all(torch.equal(a, b) for later in others for a, b in zip(first, later, strict=True))
    return dict(zip(names, first, strict=True))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> dict[str, Tensor]:
    """x [T, hidden], or [T, heads, dim] as Qwen3 has the norms of its heads."""
    native = layernorm.rms_norm.impls["native"].impl_fn
    return by_launch(inductor.outputs(lambda x, weight: native(x, weight, eps), x, weight), "output")


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> dict[str, Tensor]:
    native = layernorm.fused_add_rms_norm.impls["native"].impl_fn
    launches = inductor.outputs(lambda x, r, weight: native(x, r, weight, eps), x, residual, weight, rows=(0, 1))
    return by_launch(launches, "output", "residual")


def swiglu(x: Tensor) -> dict[str, Tensor]:
    return by_launch(inductor.outputs(SiluAndMul.forward_native, x), "output")


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> dict[str, Tensor]:
    """x [T, heads, dim], cos and sin [T, dim / 2]."""

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return ApplyRotaryEmb.forward_static(x, cos, sin, not interleaved)

    return by_launch(inductor.outputs(turned, x, cos, sin, rows=(0, 1, 2)), "output")


def head_norm(
    qkv: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor, k_weight: Tensor, heads: tuple[int, int], eps: float
) -> dict[str, Tensor]:
    """qkv [T, (heads + 2 groups) dim]: the lines of vLLM's Qwen3MoeAttention.forward before attention."""
    native, dim = layernorm.rms_norm.impls["native"].impl_fn, len(q_weight)
    sizes = [heads[0] * dim, heads[1] * dim, heads[1] * dim]

    def turned(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        by_head = native(x.view(*x.shape[:-1], x.shape[-1] // dim, dim), weight, eps).view(x.shape)
        rotated = ApplyRotaryEmb.forward_static(by_head.view(x.shape[0], -1, dim), cos, sin, True)
        return rotated.reshape(x.shape)

    def norm_and_rope(
        qkv: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor, k_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        q, k, _ = qkv.split(sizes, dim=-1)
        return turned(q, q_weight, cos, sin), turned(k, k_weight, cos, sin)

    return by_launch(inductor.outputs(norm_and_rope, qkv, cos, sin, q_weight, k_weight, rows=(0, 1, 2)), "q", "k")


def shared_add(
    x: Tensor, shared: Tensor, residual: Tensor, weight: Tensor, scale: float, eps: float
) -> dict[str, Tensor]:
    """The lines of vLLM's MoERunner behind its custom op on one rank, and the norm of the next layer."""
    native = layernorm.fused_add_rms_norm.impls["native"].impl_fn

    def summed(x: Tensor, shared: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        normed, stream = native(shared + x * scale, residual, weight, eps)
        return normed, stream

    return by_launch(inductor.outputs(summed, x, shared, residual, weight, rows=(0, 1, 2)), "output", "residual")


if __name__ == "__main__":
    backend.answer({f.__name__: f for f in (rms_norm, add_norm, swiglu, rotary, head_norm, shared_add)})
