"""FlashInfer's Python references on CPU, from its wheel (flashinfer/trace/templates), run by test_functions.py.

They are what its kernels are held to there; the kernels themselves are CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer

with left_out("tvm_ffi", "pynvml", "requests"):
    from flashinfer.trace.templates import activation, comm, norm, sampling
    from flashinfer.trace.templates import rope as rotations


def rms_norm(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, form: str) -> dict[str, Tensor]:
    """`form`: the reference, `eps` its own."""
    function = getattr(norm, f"_{form}_reference")
    if residual is None:
        return {"output": function(x, weight)}
    out = function(x.clone(), residual.clone(), weight)
    return {"output": out if isinstance(out, Tensor) else out[0]}


def fused_norm(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> dict[str, Tensor]:
    """All-reduce, residual and norm, of what is reduced already."""
    outputs = {"residual_out": torch.empty_like(x), "norm_out": torch.empty_like(x)}
    comm._allreduce_fusion_reference(x, None, 1, residual_in=residual, rms_gamma=weight, rms_eps=eps, **outputs)
    return {"output": outputs["norm_out"], "residual": outputs["residual_out"]}


def swiglu(x: Tensor) -> dict[str, Tensor]:
    return {"output": activation._silu_and_mul_reference(x)}


def rotary(
    x: Tensor, k: Tensor, rope: dict[str, Any], length: int, interleaved: bool, dim: int, *, rope_of: str, cache: Tensor
) -> dict[str, Tensor]:
    """x [T, H, D], k [T, G, D], of which `dim` columns are turned. `rope_of`: the reference."""
    positions = torch.arange(len(x))
    if rope_of == "cache":
        flat = (x.flatten(1), k.flatten(1), x.shape[-1], cache)
        q, turned = rotations._apply_rope_with_cos_sin_cache_reference(positions, *flat, not interleaved)
        return {"q": q.view(x.shape), "k": turned.view(k.shape)}
    how: dict[str, Any] = {"rotary_dim": dim, "interleave": interleaved, "rope_theta": rope["rope_theta"]}
    if rope_of == "llama31":
        how |= {"rope_scale": rope["factor"], "old_context_len": rope["original_max_position_embeddings"]}
        how |= {name: rope[name] for name in ("low_freq_factor", "high_freq_factor")}
        q, turned = rotations._apply_llama31_rope_pos_ids_reference(x, k, positions, **how)
    else:
        q, turned = rotations._apply_rope_pos_ids_reference(x, k, positions, **how)
    return {"q": q, "k": turned}


def router(x: Tensor, bias: Tensor, p: dict[str, Any]) -> dict[str, Tensor]:
    weights, ids = torch.empty(len(x), p["top_k"]), torch.empty(len(x), p["top_k"], dtype=torch.int64)
    groups = (p["groups"], p["top_groups"], p["top_k"], p["scale"])
    sampling._fused_topk_deepseek_reference(x, bias, *groups, weights, ids)
    return {"ids": ids, "weights": weights}


if __name__ == "__main__":
    answer({f.__name__: f for f in (rms_norm, fused_norm, swiglu, rotary, router)})
