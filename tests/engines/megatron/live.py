"""Megatron-core's torch code on CPU, run by test_functions.py: Megatron-LM's sources, or its package on PyPI.

TransformerEngine is absent, so its unfused code runs. `torch.cuda.current_device` answers cpu, where it asks where to
put a table. `torch.compile`, its jit fuser, is switched off: live_compiled.py runs what it makes.
"""

from __future__ import annotations

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import inspect
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from megatron.core.tensor_parallel.layers import LinearWithGradAccumulationAndAsyncCommunication, VocabParallelEmbedding
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor

from tests.engines.live import answer

torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]


def rms_norm(x: Tensor, weight: Tensor, residual: None, eps: float) -> dict[str, Tensor]:
    names = ("layernorm_zero_centered_gamma", "persist_layer_norm", "sequence_parallel", "memory_efficient_layer_norm")
    config = SimpleNamespace(normalization="RMSNorm", **dict.fromkeys(names, False))
    module: Any = WrappedTorchNorm(config, x.shape[-1], eps)
    module.weight.data = weight
    return {"output": module(x)}


def router(x: Tensor, bias: Tensor | None, p: dict[str, Any], timing: str, grad: bool) -> dict[str, Tensor]:
    """x: logits [T, E]. Versions without `dense_output` give [T, E] only. `grad`: as in a training step."""
    grouped = {"num_groups": p["groups"], "group_topk": p["top_groups"]} if p["groups"] > 1 else {}
    function = moe_utils.topk_routing_with_score_function
    dense = {"dense_output": True} if "dense_output" in inspect.signature(function).parameters else {}
    scale = p["scale"] if p["scale"] != 1 else None
    how = {"use_pre_softmax": timing == "before_topk", "scaling_factor": scale, "score_function": p["score"]}
    with torch.set_grad_enabled(grad):
        weights, chosen = function(x, p["top_k"], expert_bias=bias, **how, **grouped, **dense)
    return {"ids" if dense else "map": chosen, "weights": weights}


def gate(x: Tensor, weight: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    return {"output": moe_utils.router_gating_linear(x, weight, None, dtype)}


def combine(x: Tensor, ids: Tensor, weights: Tensor, experts: int, weighted: bool) -> dict[str, Tensor]:
    """x: rows [T, K, H] by slot; sorted by expert by `permute`, and added up by `unpermute`."""
    count, k, hidden = x.shape
    chosen = torch.zeros(count, experts, dtype=torch.bool).scatter_(1, ids, 1)
    probs = torch.zeros(count, experts).scatter_(1, ids, weights).to(x.dtype)
    tokens = torch.arange(count, dtype=torch.float32).unsqueeze(1)
    order = moe_utils.permute(tokens, chosen, num_out_tokens=count * k)[0].squeeze(1).long()
    experts_of = torch.cat([torch.full((int(n),), e) for e, n in enumerate(chosen.sum(0).tolist())])
    slots = (ids[order] == experts_of.unsqueeze(1)).int().argmax(1)
    rows, where = x[order, slots], order
    probabilities = {"probs": probs, "routing_map": chosen} if weighted else {}
    return {"output": moe_utils.unpermute(rows, where, torch.Size((count, hidden)), **probabilities)}


class Unchanged(torch.nn.Module):
    """In place of a projection: its input, and no bias."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return x, None


def mlp(x: Tensor, scores: Tensor | None) -> dict[str, Tensor]:
    """The activation of MLP.forward without fusion; x: gate and up side by side, scores [T]."""
    settings = dict.fromkeys(("use_te_activation_func", "bias_activation_fusion", "activation_func_clamp_value"))
    config = SimpleNamespace(gated_linear_unit=True, activation_func=F.silu, glu_linear_offset=0.0, **settings)

    self = SimpleNamespace(config=config, activation_func=F.silu, linear_fc1=Unchanged(), linear_fc2=Unchanged())
    return {"output": MLP.forward(self, x, scores)[0]}


def rotary(x: Tensor, k: Tensor, rope: dict[str, Any], length: int, interleaved: bool, dim: int) -> dict[str, Tensor]:
    """x [T, H, D], k [T, G, D], of which `dim` columns are turned; `interleaved` as its latent attention does."""
    theta, head, kind = rope["rope_theta"], x.shape[-1], rope["rope_type"]
    common = {"rotary_percent": dim / head, "use_cpu_initialization": True}
    mscale = 1.0
    if kind == "yarn":
        names = ("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        scaling = {name: rope[name] for name in names if name in rope}
        module = YarnRotaryEmbedding(head, rotary_base=theta, scaling_factor=rope["factor"], **scaling, **common)
        freqs, mscale = module.get_emb(len(x))
    else:
        scaled = {"rope_scaling": True, "rope_scaling_factor": rope["factor"]} if kind == "llama3" else {}
        freqs = RotaryEmbedding(head, rotary_base=theta, **scaled, **common).get_emb(len(x))
    how = {"mla_rotary_interleaved": interleaved, "mscale": mscale}
    q, turned = (_apply_rotary_pos_emb_bshd(y.unsqueeze(1), freqs, **how).squeeze(1) for y in (x, k))
    return {"q": q, "k": turned}


def add(x: Tensor, residual: Tensor) -> dict[str, Tensor]:
    return {"output": get_bias_dropout_add(False, True)((x.clone(), None), residual.clone(), 0.0)}


def shared_add(x: Tensor, shared: Tensor, scale: float) -> dict[str, Tensor]:
    """x comes out of the dispatcher."""
    dispatcher = SimpleNamespace(combine_postprocess=lambda rows: rows)
    config = SimpleNamespace(moe_latent_size=None)
    return {"output": MoELayer.postprocess(SimpleNamespace(token_dispatcher=dispatcher, config=config), x, shared)}


ALONE = SimpleNamespace(size=lambda: 1, rank=lambda: 0)


def lm_head(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """What ColumnParallelLinear, the output layer, calls on one rank, without fused accumulation of gradients."""
    product = LinearWithGradAccumulationAndAsyncCommunication
    return {"output": product.apply(x, weight, None, False, False, False, None, None, ALONE, 1, None)}


def embedding(x: Tensor, ids: Tensor) -> dict[str, Tensor]:
    names = ("deterministic_mode", "reduce_scatter_embeddings")
    table = SimpleNamespace(tp_group=ALONE, weight=x, gtp_remat_size=1, **dict.fromkeys(names, False))
    return {"output": VocabParallelEmbedding.forward(table, ids)}


def log_probs(x: Tensor, ids: Tensor, temperature: float) -> dict[str, Tensor]:
    """x: logits [T, V] of one rank, whose maxima and sums nothing is reduced with."""
    of = VocabParallelCrossEntropy
    logits, most = of.calculate_logits_max(x.clone())
    _, _, predicted, total, powers = of.calculate_predicted_logits(logits, ids, most, 0, x.shape[-1])
    return {"output": -of.calculate_cross_entropy_loss(powers, predicted, total)[1]}


if __name__ == "__main__":
    functions = (rms_norm, router, gate, combine, mlp, rotary, add, shared_add, log_probs, lm_head, embedding)
    answer({f.__name__: f for f in functions})
