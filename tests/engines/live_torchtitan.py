"""torchtitan 0.3.0's modules on CPU, run by test_torchtitan.py.

The router asks for torch's autocast to fp32, which torch turns off on CPU: its gate is given what autocast casts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torchtitan.models.common.attention import GQAttention, QKVLinear, ScaledDotProductAttention
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts, MoE, RoutedExperts, TokenChoiceTopKRouter
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher

from tests.engines.live import answer

ROPE = {"complex": ComplexRoPE, "cos_sin": CosSinRoPE}
Weights = dict[str, Tensor]


def _linear(weight: Tensor) -> Any:
    return Linear.Config(in_features=weight.shape[1], out_features=weight.shape[0])


def moe(x: Tensor, weights: Weights, bias: Tensor, router: dict[str, Any]) -> dict[str, Tensor]:
    """Every step of the layer: routing, experts, combine, shared expert."""
    experts, wide, hidden = weights["routed_experts.inner_experts.w1_EFD"].shape
    dispatcher = LocalTokenDispatcher.Config(num_experts=experts, top_k=router["top_k"])
    inner = GroupedExperts.Config(dim=hidden, hidden_dim=wide, num_experts=experts)
    shared = {name: _linear(weights[f"shared_experts.{name}.weight"]) for name in ("w1", "w2", "w3")}
    gate = _linear(weights["router.gate.weight"])
    module: Any = MoE.Config(
        num_experts=experts,
        routed_experts=RoutedExperts.Config(inner_experts=inner, token_dispatcher=dispatcher),
        router=TokenChoiceTopKRouter.Config(num_experts=experts, gate=gate, **router),
        shared_experts=FeedForward.Config(**shared),
    ).build()
    module.to(x.dtype).load_state_dict(weights | {"expert_bias_E": bias})
    module.expert_bias_E = bias
    module.router.gate.forward = lambda x: F.linear(x.float(), weights["router.gate.weight"].float())
    scores, ids, _ = module.router(x, bias)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    routed = module.routed_experts(x, scores, ids, counts)
    return {"ids": ids, "weights": scores, "routed": routed, "output": module(x)}


def combine(rows: Tensor, ids: Tensor, weights: Tensor, experts: int) -> dict[str, Tensor]:
    """rows [N, K, H] by slot -> [N, H]."""
    count, k, hidden = rows.shape
    dispatcher: Any = LocalTokenDispatcher(LocalTokenDispatcher.Config(num_experts=experts, top_k=k))
    zeros = rows.new_zeros(count, hidden)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    _, _, metadata = dispatcher.dispatch(zeros, weights, ids, counts)
    by_expert = rows.flatten(0, 1)[ids.flatten().argsort(stable=True)]
    return {"output": dispatcher.combine(by_expert, metadata, zeros)}


def rope(q: Tensor, k: Tensor, form: str, length: int) -> dict[str, Tensor]:
    module: Any = ROPE[form].Config(dim=q.shape[-1], max_seq_len=length).build()
    turned = module(q, k)
    return {"cache": module.cache, "q": turned[0], "k": turned[1]}


def attention(x: Tensor, weights: Weights, form: str, heads: tuple[int, int], eps: float) -> dict[str, Tensor]:
    """Projections, norms of queries and keys, rope, sdpa and the projection back: `heads` of queries and of keys."""
    names = ("qkv_linear.wq", "qkv_linear.wk", "wo")
    wq, wkv, wo = (_linear(weights[f"{name}.weight"]) for name in names)
    width = wq.out_features // heads[0]
    module: Any = GQAttention.Config(
        n_heads=heads[0],
        n_kv_heads=heads[1],
        dim=x.shape[-1],
        head_dim=width,
        qkv_linear=QKVLinear.Config(head_dim=width, wq=wq, wkv=wkv),
        wo=wo,
        qk_norm=RMSNorm.Config(normalized_shape=width, eps=eps),
        inner_attention=ScaledDotProductAttention.Config(),
        rope=ROPE[form].Config(dim=width, max_seq_len=x.shape[1]),
    ).build()
    cache = module.rope.cache
    module.to(x.dtype).load_state_dict(weights)
    # What `to` makes of the table is nothing that torchtitan does: it keeps it in fp32.
    module.rope.cache = cache
    return {"cache": cache, "output": module(x, None)}


if __name__ == "__main__":
    answer({"moe": moe, "combine": combine, "rope": rope, "attention": attention})
