"""Small models of torchtitan 0.3.0 on CPU, captured over a checkpoint of transformers; run by test_explained_titan.py.

Attention is torchtitan's `ScaledDotProductAttention`: its others are compiled. The router asks for torch's autocast to
fp32, which torch turns off on CPU: in the layers of `fp32_gates` the gate is given what autocast casts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torchtitan.models.common.attention import GQAttention, QKVLinear, ScaledDotProductAttention
from torchtitan.models.common.embedding import Embedding
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import GroupedExperts, MoE, RoutedExperts, TokenChoiceTopKRouter
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE
from torchtitan.models.common.token_dispatcher import LocalTokenDispatcher
from torchtitan.models.deepseek_v3.model import Attention, DeepSeekV3Model, DeepSeekV3TransformerBlock
from torchtitan.models.deepseek_v3.state_dict_adapter import DeepSeekV3StateDictAdapter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter

from moeparity.evidence.capture.context import capture
from tests.engines.live import answer

EPS = 1e-6
Config = dict[str, Any]


def _linear(inputs: int, outputs: int) -> Any:
    return Linear.Config(in_features=inputs, out_features=outputs)


def _norm(width: int) -> Any:
    return RMSNorm.Config(normalized_shape=width, eps=EPS)


def _ffn(hidden: int, wide: int) -> Any:
    return FeedForward.Config(w1=_linear(hidden, wide), w2=_linear(wide, hidden), w3=_linear(hidden, wide))


def _moe(c: Config, experts: int, shared: int, **router: Any) -> Any:
    hidden, wide, k = c["hidden_size"], c["moe_intermediate_size"], c["num_experts_per_tok"]
    return MoE.Config(
        num_experts=experts,
        routed_experts=RoutedExperts.Config(
            inner_experts=GroupedExperts.Config(dim=hidden, hidden_dim=wide, num_experts=experts),
            token_dispatcher=LocalTokenDispatcher.Config(num_experts=experts, top_k=k),
        ),
        router=TokenChoiceTopKRouter.Config(num_experts=experts, gate=_linear(hidden, experts), top_k=k, **router),
        shared_experts=_ffn(hidden, wide * shared) if shared else None,
    )


def _model(c: Config, kind: Any, layers: list[Any]) -> Any:
    hidden, vocabulary = c["hidden_size"], c["vocab_size"]
    return kind.Config(
        dim=hidden,
        vocab_size=vocabulary,
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=hidden),
        norm=_norm(hidden),
        lm_head=_linear(hidden, vocabulary),
        layers=layers,
    )


def _qwen3_moe(c: Config, length: int) -> tuple[Any, Any]:
    hidden, width, heads, groups = (
        c[name] for name in ("hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads")
    )
    layer = Qwen3TransformerBlock.Config(
        attention_norm=_norm(hidden),
        ffn_norm=_norm(hidden),
        attention=GQAttention.Config(
            n_heads=heads,
            n_kv_heads=groups,
            dim=hidden,
            head_dim=width,
            qkv_linear=QKVLinear.Config(
                head_dim=width, wq=_linear(hidden, heads * width), wkv=_linear(hidden, groups * width)
            ),
            wo=_linear(heads * width, hidden),
            qk_norm=_norm(width),
            inner_attention=ScaledDotProductAttention.Config(),
            rope=CosSinRoPE.Config(dim=width, max_seq_len=length, theta=c["rope_parameters"]["rope_theta"]),
        ),
        moe=_moe(c, c["num_local_experts"], 0, score_func="softmax", route_norm=True),
    )
    return _model(c, Qwen3Model, [layer] * c["num_hidden_layers"]), Qwen3StateDictAdapter


def _deepseek_v3(c: Config, length: int) -> tuple[Any, Any]:
    hidden, heads, rank, q_rank = (
        c[name] for name in ("hidden_size", "num_attention_heads", "kv_lora_rank", "q_lora_rank")
    )
    nope, turned, values = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    attention = Attention.Config(
        n_heads=heads,
        dim=hidden,
        q_lora_rank=q_rank,
        kv_lora_rank=rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=turned,
        v_head_dim=values,
        wq_a=_linear(hidden, q_rank),
        q_norm=_norm(q_rank),
        wq_b=_linear(q_rank, heads * (nope + turned)),
        wkv_a=_linear(hidden, rank + turned),
        kv_norm=_norm(rank),
        wkv_b=_linear(rank, heads * (nope + values)),
        wo=_linear(heads * values, hidden),
        inner_attention=ScaledDotProductAttention.Config(),
        rope=ComplexRoPE.Config(dim=turned, max_seq_len=length, theta=c["rope_parameters"]["rope_theta"]),
    )
    router = {
        "score_func": "sigmoid",
        "route_norm": c["norm_topk_prob"],
        "route_scale": c["routed_scaling_factor"],
        "num_expert_groups": c["n_group"],
        "num_limited_groups": c["topk_group"],
    }
    layers = [
        DeepSeekV3TransformerBlock.Config(
            attention=attention,
            attention_norm=_norm(hidden),
            ffn_norm=_norm(hidden),
            feed_forward=None if sparse else _ffn(hidden, c["intermediate_size"]),
            moe=_moe(c, c["n_routed_experts"], c["n_shared_experts"], **router) if sparse else None,
        )
        for sparse in (number >= c["first_k_dense_replace"] for number in range(c["num_hidden_layers"]))
    ]
    return _model(c, DeepSeekV3Model, layers), DeepSeekV3StateDictAdapter


MODELS = {"qwen3_moe": _qwen3_moe, "deepseek_v3": _deepseek_v3}


def trace(
    checkpoint: str, folder: str, ids: Tensor, fp32_gates: tuple[int, ...] = (), balanced: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    """A forward over the ids [B, T] in bf16, captured module by module; its logits.

    `balanced`: layers whose router goes round, as torchtitan's `debug.moe_force_load_balance` makes it.
    """
    c = json.loads((Path(checkpoint) / "config.json").read_text())
    config, adapter = MODELS[c["model_type"]](c, ids.shape[1])
    model = config.build()
    buffers = dict(model.named_buffers())
    weights = adapter(config, None).from_hf(load_file(Path(checkpoint) / "model.safetensors"))
    model.to(torch.bfloat16).load_state_dict(weights, strict=False)
    # What `to` makes of tables and biases is nothing that torchtitan does: it keeps them in fp32.
    for name, buffer in buffers.items():
        module, _, buffer_name = name.rpartition(".")
        setattr(model.get_submodule(module), buffer_name, weights.get(name, buffer))
    for number in fp32_gates:
        gate = model.layers[str(number)].moe.router.gate
        gate.forward = lambda x, w=gate.weight: F.linear(x.float(), w.float())
    for number in balanced:
        model.layers[str(number)].moe.router._debug_force_load_balance = True
    with capture(Path(folder), level="module", save="*", stacks=False, stats=False):
        logits = model.eval()(ids)
    return {"logits": logits}


if __name__ == "__main__":
    answer({"trace": trace})
