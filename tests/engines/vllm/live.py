"""vLLM's native (torch) forwards on CPU, from its source distribution, run by test_functions.py.

`torch.compile` is switched off by TORCHDYNAMO_DISABLE: what is decorated with it runs as written. Its kernels in C are
absent, and nothing that calls one is run.
"""

from __future__ import annotations

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer
from tests.engines.vllm.left_out import LEFT_OUT

with left_out(*LEFT_OUT.split()):
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers import activation, layernorm, linear, logits_processor, rotary_embedding, utils
    from vllm.model_executor.layers import vocab_parallel_embedding as vocabulary
    from vllm.model_executor.layers.fused_moe.router import cpu_router, gate_linear, grouped_topk_router
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNaiveBatched
    from vllm.model_executor.layers.rotary_embedding import deepseek_scaling_rope, llama3_rope, yarn_scaling_rope
    from vllm.model_executor.models.llama4 import Llama4MoE
    from vllm.v1.sample.sampler import Sampler


def rms_norm(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float, form: str) -> dict[str, Tensor]:
    """`form`: the class."""
    module = getattr(layernorm, form)(x.shape[-1], eps=eps)
    module.weight.data = weight
    if residual is None:
        return {"output": module.forward_native(x.clone())}
    output, summed = module.forward_native(x.clone(), residual.clone())
    return {"output": output, "residual": summed}


def swiglu(x: Tensor) -> dict[str, Tensor]:
    return {"output": activation.SiluAndMul.forward_native(x)}


def swigluoai(x: Tensor, alpha: float, limit: float) -> dict[str, Tensor]:
    return {"output": activation.SwigluOAIAndMul(alpha=alpha, limit=limit).forward_native(x)}


FORMS: dict[str, Any] = {
    "default": (rotary_embedding.RotaryEmbedding, ()),
    "llama3": (
        llama3_rope.Llama3RotaryEmbedding,
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    ),
}


def rotary(x: Tensor, k: Tensor, rope: dict[str, Any], length: int, interleaved: bool, dim: int) -> dict[str, Tensor]:
    """x [T, H, D], k [T, G, D], of which `dim` columns are turned."""
    head, base, neox = x.shape[-1], rope["rope_theta"], not interleaved
    kind = rope["rope_type"]
    if kind in FORMS:
        form, names = FORMS[kind]
        module = form(head, dim, length, base, neox, x.dtype, *(rope[name] for name in names))
    else:
        trained, factor = rope["original_max_position_embeddings"], rope["factor"]
        names = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        others = {name: rope[name] for name in names if name in rope}
        deepseek, plain = (
            deepseek_scaling_rope.DeepseekScalingRotaryEmbedding,
            yarn_scaling_rope.YaRNScalingRotaryEmbedding,
        )
        of = deepseek if "mscale" in rope else plain
        module = of(head, dim, trained, base, neox, factor, x.dtype, **others)
    positions = torch.arange(x.shape[0])
    q, turned = module.forward_native(positions, x.clone(), k.clone())
    return {"cache": module.cos_sin_cache[: x.shape[0]], "q": q, "k": turned}


def router(x: Tensor, bias: Tensor | None, p: dict[str, Any], form: str) -> dict[str, Tensor]:
    """x: logits [T, E]. `form`: `grouped`, or what vLLM takes on CPU."""
    k, groups, top_groups, scale = p["top_k"], p["groups"], p["top_groups"], p["scale"]
    if form == "softmax":
        weights, ids = cpu_router._softmax_topk(x, k, p["renormalize"])
    elif form == "llama4":
        weights, ids = Llama4MoE.custom_routing_function(x, x, k, False)
    elif form == "cpu":
        weights, ids = cpu_router._grouped_topk(x, k, p["renormalize"], groups, top_groups, p["score"], scale, bias)
    else:
        module = grouped_topk_router.GroupedTopk(k, p["renormalize"], groups, top_groups, p["score"], scale)
        weights, ids = module.forward_native(x, x, bias)
    return {"ids": ids.long(), "weights": weights}


H100 = SimpleNamespace(
    is_cuda=lambda: True,
    is_cuda_alike=lambda: True,
    is_rocm=lambda: False,
    is_xpu=lambda: False,
    is_cpu=lambda: False,
    is_device_capability=lambda capability: capability in (90, (9, 0)),
    is_device_capability_family=lambda _: False,
)


def on_h100(method: type[Any]) -> Any:
    """A method of unquantised layers as it is made where the platform is an H100: F.linear, no kernel of FlashInfer."""
    with patch.object(utils, "current_platform", H100):
        return method()


def product(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    return {"output": on_h100(linear.UnquantizedLinearMethod).apply(SimpleNamespace(weight=weight), x)}


def gate(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """GateLinear without `out_dtype`, as Qwen3-MoE and DeepSeek-V3 have it."""
    alone = patch.object(parallel_state, "_TP", SimpleNamespace(rank_in_group=0, world_size=1))
    platforms = [patch.object(place, "current_platform", H100) for place in (gate_linear, utils)]
    with alone, platforms[0], platforms[1]:
        module = gate_linear.GateLinear(x.shape[-1], len(weight), params_dtype=weight.dtype)
    module.weight.data = weight
    return {"output": module(x)[0]}


def lm_head(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    processor = logits_processor.LogitsProcessor(len(weight))
    method = on_h100(vocabulary.UnquantizedEmbeddingMethod)
    head = SimpleNamespace(weight=weight, quant_method=method, tp_size=1)
    with patch.object(utils, "current_platform", H100):
        return {"output": processor._get_logits(x, head, None)}


def embedding(x: Tensor, ids: Tensor) -> dict[str, Tensor]:
    return {"output": vocabulary.UnquantizedEmbeddingMethod().embedding(SimpleNamespace(weight=x), ids)}


def reduce(x: Tensor, ids: Tensor, weights: Tensor, experts: int) -> dict[str, Tensor]:
    """x: rows [T, K, H] by slot, handed over as that class takes them: by expert, in order of tokens."""
    count, hidden = x.shape[0], x.shape[2]
    by_expert = x.new_zeros(experts, count, hidden)
    for expert in range(experts):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        by_expert[expert, : len(tokens)] = x[tokens, slots]
    return {"output": TopKWeightAndReduceNaiveBatched(0).apply(None, by_expert, weights, ids, False)}


def shared_add(x: Tensor, shared: Tensor, scale: float) -> dict[str, Tensor]:
    """The lines of MoERunner.forward behind its experts, on one rank."""
    runner = SimpleNamespace(routed_scaling_factor=scale)
    apart, routed = MoERunner._maybe_apply_routed_scale_to_output(runner, shared.clone(), x.clone())
    return {"output": apart + routed}


def log_probs(x: Tensor, temperature: float) -> dict[str, Tensor]:
    """x: logits [T, V], as the V1 runner's sampler takes them; processed ones with a temperature."""
    logits = x.float() if temperature != 1 else x
    if temperature != 1:
        logits = Sampler.apply_temperature(logits.clone(), torch.full((len(x),), temperature), True)
    return {"output": Sampler.compute_logprobs(logits)}


if __name__ == "__main__":
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        functions = (
            rms_norm,
            swiglu,
            swigluoai,
            rotary,
            router,
            reduce,
            shared_add,
            log_probs,
            gate,
            lm_head,
            embedding,
        )
        answer({"linear": product, **{f.__name__: f for f in functions}})
