"""SGLang's native (torch) forwards on CPU, from its wheel, run by test_functions.py.

SGLANG_ROPE_CACHE_FP32 keeps cos and sin in fp32 as on CUDA, and SGLANG_USE_CPU_ENGINE spares the rotary embedding a
kernel of another package that it would import.
"""

from __future__ import annotations

import os

os.environ |= {"SGLANG_ROPE_CACHE_FP32": "1", "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}

from types import SimpleNamespace
from typing import Any

import torch

# It asks for torchvision, which below seems to be there.
import transformers.models.auto.processing_auto  # noqa: F401
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer
from tests.engines.sglang.left_out import LEFT_OUT

with left_out(*LEFT_OUT.split()):
    from sglang.srt.layers import activation, layernorm, logits_processor, sampler
    from sglang.srt.layers.moe import fused_moe_native, topk
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
    from sglang.srt.layers.quantization import unquant
    from sglang.srt.layers.rotary_embedding import base, rope_variant, yarn
    from sglang.srt.models.deepseek_v2 import _scale_routed_and_add_shared


def rms_norm(
    x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, form: str, **settings: Any
) -> dict[str, Tensor]:
    """`form`: the class, with its settings."""
    module = getattr(layernorm, form)(x.shape[-1], eps=eps, **settings)
    module.weight.data = weight
    if residual is None:
        return {"output": module.forward_native(x.clone())}
    output, summed = module.forward_native(x.clone(), residual.clone())
    return {"output": output, "residual": summed}


def swiglu(x: Tensor) -> dict[str, Tensor]:
    return {"output": activation.SiluAndMul().forward_native(x)}


def rotary(x: Tensor, k: Tensor, rope: dict[str, Any], length: int, interleaved: bool, dim: int) -> dict[str, Tensor]:
    """x [T, H, D], k [T, G, D], of which `dim` columns are turned."""
    head, theta, neox, kind = x.shape[-1], rope["rope_theta"], not interleaved, rope["rope_type"]
    if kind == "default":
        module = base.RotaryEmbedding(head, dim, length, theta, neox, x.dtype)
    elif kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        of = (rope[name] for name in names)
        module = rope_variant.Llama3RotaryEmbedding(head, dim, length, theta, neox, x.dtype, *of)
    else:
        trained, factor = rope["original_max_position_embeddings"], rope["factor"]
        others = {n: rope[n] for n in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim") if n in rope}
        deepseek = rope_variant.DeepseekScalingRotaryEmbedding
        form, device = (deepseek, {"device": "cpu"}) if "mscale" in rope else (yarn.YaRNScalingRotaryEmbedding, {})
        module = form(head, dim, trained, theta, neox, factor, x.dtype, **others, **device)
    q, turned = module.forward_native(torch.arange(len(x)), x.clone(), k.clone())
    # DeepSeek's puts an axis in front.
    cache = module.cos_sin_cache[: len(x)].to(x.dtype)
    return {"cache": cache, "q": q.view(x.shape), "k": turned.view(k.shape)}


def router(x: Tensor, bias: Tensor | None, p: dict[str, Any], form: str) -> dict[str, Tensor]:
    """x: logits [T, E]. `form`: the function."""
    k, renormalize = p["top_k"], p["renormalize"]
    scaled = {"routed_scaling_factor": p["scale"], "apply_routed_scaling_factor_on_output": p["scale"] != 1}
    groups = (p["groups"], p["top_groups"], 0)
    if form == "fused_topk_torch_native":
        weights, ids = topk.fused_topk_torch_native(x, x, k, renormalize, bias, p["score"])
    elif form == "fused_topk_softmax_torch_raw_logits":
        weights, ids = topk.fused_topk_softmax_torch_raw_logits(x, x, k, renormalize)
    elif form == "grouped_topk_gpu":
        weights, ids = topk.grouped_topk_gpu(x, x, k, renormalize, *groups, scoring_func=p["score"], **scaled)
    elif form == "biased_topk_impl":
        weights, ids = topk.biased_topk_impl(x, x, bias, k, renormalize, **scaled)
    else:
        weights, ids = topk.biased_grouped_topk_impl(x, x, bias, k, renormalize, *groups, **scaled)
    return {"ids": ids.long(), "weights": weights}


def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> dict[str, Tensor]:
    layer = SimpleNamespace(num_experts=len(down), w13_weight=gate_up, w2_weight=down)
    chosen = topk.StandardTopKOutput(weights, ids, None)
    return {"output": fused_moe_native.moe_forward_native(layer, x, chosen, MoeRunnerConfig())}


def shared_add(x: Tensor, shared: Tensor, scale: float, fused: bool) -> dict[str, Tensor]:
    how = {"routed_scaling_factor": scale, "fused_in_topk": fused}
    return {"output": _scale_routed_and_add_shared(x.clone(), shared.clone(), **how)}


def lm_head(x: Tensor, weight: Tensor, form: str) -> dict[str, Tensor]:
    """`form`: `default`, `fp32` (--enable-fp32-lm-head) or `on_policy` (--rl-on-policy-target)."""
    settings = SimpleNamespace(
        use_fp32_lm_head=form == "fp32",
        use_fp32_lm_head_output=False,
        rl_on_policy_target="fsdp" if form == "on_policy" else None,
    )
    logits = logits_processor.LogitsProcessor._compute_lm_head(settings, x, SimpleNamespace(weight=weight))
    return {"output": logits}


def product(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Of a linear layer, the gates of Qwen3-MoE and its like among them."""
    assert not unquant.get_bf16_gemm_backend().is_cutedsl()
    method: Any = object.__new__(unquant.UnquantizedLinearMethod)
    return {"output": method.apply(SimpleNamespace(weight=weight), x)}


def embedding(x: Tensor, ids: Tensor) -> dict[str, Tensor]:
    method: Any = object.__new__(unquant.UnquantizedEmbeddingMethod)
    return {"output": method.embedding(SimpleNamespace(weight=x), ids)}


def log_probs(x: Tensor, temperature: float, form: str) -> dict[str, Tensor]:
    """x: logits [T, V]. All that Sampler.forward hands its processor, clamped there.

    `form`: `sampled`, `greedy`, `deterministic` or `on_policy`.
    """
    module: Any = object.__new__(sampler.Sampler)
    torch.nn.Module.__init__(module)
    module.rl_on_policy_target = "fsdp" if form == "on_policy" else None
    module.enable_deterministic = form in ("deterministic", "on_policy")
    module.use_log_softmax_logprob = form == "on_policy"
    module.use_ascend_backend = False
    handed: list[Tensor] = []

    def compute(logits: Tensor, *others: Any) -> Any:
        handed.append(logits)
        return sampler.OutputLogprobProcessor().compute_logprobs(logits, *others)

    module.output_logprob_processor = SimpleNamespace(compute_logprobs=compute)
    rows = len(x)
    info = SimpleNamespace(
        is_all_greedy=form == "greedy",
        temperatures=torch.full((rows, 1), temperature),
        sampling_seed=None,
        has_custom_logit_processor=False,
        sampling_mask_batch_indices=None,
        sampling_support_logprobs_capture_indices=None,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        grammars=None,
    )
    output = SimpleNamespace(next_token_logits=x.float().clone())
    module._sync_token_ids_across_tp = lambda *_: None
    # Which token is drawn is a kernel's in C, and no matter here.
    module._sample_from_logprobs = lambda *_: torch.zeros(rows, dtype=torch.int64)
    module.forward(output, info, True, [0] * rows, [None] * rows, torch.zeros(rows, dtype=torch.int64))
    return {"output": handed[0]}


if __name__ == "__main__":
    functions = (rms_norm, swiglu, rotary, router, experts, shared_add, lm_head, log_probs, embedding)
    answer({"linear": product, **{f.__name__: f for f in functions}})
