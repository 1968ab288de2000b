"""What the hidden suite changes in transformers' code: one line of one function, in some layer. Free of moeparity.

A patch is pairs of source texts; the function is compiled again from its changed source, in its own module's
namespace. `answers` are moeparity's words for it, choices or a fault of `graphs/faults`, any of which is right (all of
them, where one is several choices); none where its vocabulary has no word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Site = Literal["norm", "rope", "attend", "linear", "router", "experts", "shared", "head"]
ROOT: dict[Site, str] = {
    "rope": "attention.rope",
    "attend": "attention.attend",
    "router": "moe.router",
    "experts": "moe.combine",
    "shared": "moe.shared_swiglu",
}
"""The node that closes what a site's function computes; that of a norm or a GEMM is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """In the source of a site's function the first text of each change becomes the second."""

    name: str
    site: Site
    changes: tuple[tuple[str, str], ...]
    answers: tuple[str, ...] = ()
    families: tuple[str, ...] = ("qwen3_moe", "mixtral", "qwen2_moe")


_CAST = "return self.weight * hidden_states.to(input_dtype)"
_SCORES = "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling"
_CHANCES = "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)"
_VALUES = "attn_output = torch.matmul(attn_weights, value_states)"
_MASK = "attn_weights = attn_weights + attention_mask"
_ROPE = "q_embed = (q * cos) + (rotate_half(q) * sin)"
_TOPK = "router_top_value, router_indices = torch.topk(router_probs, self.top_k, dim=-1)  # (seq_len, top_k)"
_LOGITS = "router_logits = F.linear(hidden_states, self.weight)  # (seq_len, num_experts)"
_SHARE = "router_top_value /= router_top_value.sum(dim=-1, keepdim=True)"
_NARROW = "router_top_value = router_top_value.to(router_logits.dtype)"
_ACT = "current_hidden_states = self.act_fn(gate) * up"
_DOWN = "current_hidden_states = nn.functional.linear(current_hidden_states, self.down_proj[expert_idx])"
_WEIGHT = "current_hidden_states = current_hidden_states * top_k_weights[token_idx, top_k_pos, None]"
_ROUNDED = "current_hidden_states = current_hidden_states.to(hidden_states.dtype)"
_WIDE = _WEIGHT.replace("= current_hidden_states", "= current_hidden_states.float()").replace("None]", "None].float()")
_ADDED = (
    f"{_WIDE}; new = (final_hidden_states[token_idx].float() + current_hidden_states).to(hidden_states.dtype)"
    "; final_hidden_states[token_idx] = new; current_hidden_states = current_hidden_states * 0"
)
_SDPA = (
    "attn_output = nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=True, "
    "enable_gqa=query.shape[1] > key.shape[1])"
)
_ZERO = "final_hidden_states = torch.zeros_like(hidden_states)"
_RETURN = "return final_hidden_states"
_HITS = "for expert_idx in expert_hit:"
_FLOAT = "nn.functional.linear({}.float(), {}.float())"
_GEMM = "return F.linear(input, self.weight, self.bias)"

PATCHES = (
    Patch(
        name="norm: weight before the cast",
        site="norm",
        changes=((_CAST, "return (self.weight.float() * hidden_states).to(input_dtype)"),),
        answers=("normalized=fp32",),
    ),
    Patch(
        name="norm: weight less 1 in the checkpoint",
        site="norm",
        changes=((_CAST, "return (1 + self.weight.float()).to(input_dtype) * hidden_states.to(input_dtype)"),),
        answers=("offset=1.0", "offset=1.0 with weight=bf16"),
    ),
    Patch(
        name="norm: no weight",
        site="norm",
        changes=((_CAST, "return hidden_states.to(input_dtype)"),),
        answers=("fault=norm-weight-missing",),
    ),
    Patch(
        name="norm: mean taken off",
        site="norm",
        changes=(
            (
                "hidden_states = hidden_states.to(torch.float32)",
                "hidden_states = hidden_states.float() - hidden_states.float().mean(-1, keepdim=True)",
            ),
        ),
    ),
    Patch(
        name="norm: all of it in bf16",
        site="norm",
        changes=(("hidden_states = hidden_states.to(torch.float32)", "hidden_states = hidden_states.clone()"),),
    ),
    Patch(
        name="rope: products in fp32",
        site="rope",
        changes=tuple(
            (
                _ROPE.replace("q", x),
                f"{x}_embed = (({x}.float() * cos.float()) + (rotate_half({x}).float() * sin.float())).to({x}.dtype)",
            )
            for x in "qk"
        ),
        answers=("products=fp32",),
    ),
    Patch(
        name="rope: sign of the sine", site="rope", changes=((_ROPE, "q_embed = (q * cos) - (rotate_half(q) * sin)"),)
    ),
    Patch(name="rope: queries not turned", site="rope", changes=((_ROPE, "q_embed = q"),)),
    Patch(
        name="attention: scores in fp32",
        site="attend",
        changes=(
            (_SCORES, "attn_weights = torch.matmul(query.float(), key_states.float().transpose(2, 3)) * scaling"),
        ),
        answers=("scores=fp32",),
    ),
    Patch(
        name="attention: probabilities in fp32",
        site="attend",
        changes=(
            (_CHANCES, _CHANCES.replace(".to(query.dtype)", "")),
            (_VALUES, "attn_output = torch.matmul(attn_weights, value_states.float()).to(query.dtype)"),
        ),
        answers=("probabilities=fp32",),
    ),
    Patch(
        name="attention: scaled_dot_product_attention",
        site="attend",
        changes=(
            (
                _VALUES,
                _SDPA,
            ),
        ),
        answers=("implementation=sdpa",),
    ),
    Patch(
        name="attention: one token ahead is seen",
        site="attend",
        changes=((_MASK, "attn_weights = attn_weights + attention_mask.triu(2)"),),
        answers=("fault=causal-shifted(ahead=1)",),
    ),
    Patch(
        name="attention: no scaling",
        site="attend",
        changes=((_SCORES, _SCORES.replace(" * scaling", " * scaling ** 0.5")),),
    ),
    Patch(
        name="attention: wrong head of keys",
        site="attend",
        changes=((_SCORES, _SCORES.replace("key_states.transpose", "key_states.flip(1).transpose")),),
    ),
    Patch(
        name="router: scores in bf16",
        site="router",
        changes=(
            (
                _TOPK,
                "router_probs = router_probs.bfloat16(); "
                + _TOPK.replace("dim=-1)", "dim=-1); router_top_value = router_top_value.float()"),
            ),
        ),
        answers=("scores=bf16",),
    ),
    Patch(
        name="router: weights in fp32",
        site="router",
        changes=((_NARROW, "pass"),),
        answers=("weights=fp32",),
        families=("qwen3_moe", "qwen2_moe"),
    ),
    Patch(
        name="router: weights in bf16",
        site="router",
        changes=(("router_scores = router_top_value", "router_scores = router_top_value.bfloat16()"),),
        answers=("weights=bf16",),
        families=("mixtral",),
    ),
    Patch(
        name="router: not renormalised",
        site="router",
        changes=((_SHARE, "pass"),),
        answers=("fault=renormalisation",),
        families=("qwen3_moe", "mixtral"),
    ),
    Patch(
        name="router: logits in fp32",
        site="router",
        changes=((_LOGITS, "router_logits = F.linear(hidden_states.float(), self.weight.float())"),),
        answers=("output=fp32", "inputs=fp32"),
        families=("mixtral",),
    ),
    Patch(
        name="router: logits halved",
        site="router",
        changes=((_LOGITS, "router_logits = F.linear(hidden_states, self.weight) * 0.5"),),
        answers=("fault=weights-scaled(factor=0.5)",),
    ),
    Patch(
        name="router: the worst experts",
        site="router",
        changes=((_TOPK, _TOPK.replace("dim=-1)", "dim=-1, largest=False)")),),
    ),
    Patch(
        name="router: last slot dropped",
        site="router",
        changes=(
            ("router_scores = router_top_value", "router_top_value[:, -1] = 0; router_scores = router_top_value"),
        ),
    ),
    Patch(
        name="router: slots in ascending order",
        site="router",
        changes=(
            (
                _TOPK,
                _TOPK.replace(
                    "dim=-1)",
                    "dim=-1); router_top_value = router_top_value.flip(-1); router_indices = router_indices.flip(-1)",
                ),
            ),
        ),
    ),
    Patch(
        name="experts: silu in fp32",
        site="experts",
        changes=((_ACT, "current_hidden_states = (self.act_fn(gate.float()) * up.float()).to(gate.dtype)"),),
        answers=("activation=fp32",),
    ),
    Patch(
        name="experts: down projection in fp32",
        site="experts",
        changes=(
            (_DOWN, f"current_hidden_states = {_FLOAT.format('current_hidden_states', 'self.down_proj[expert_idx]')}"),
        ),
        answers=("output=fp32",),
    ),
    Patch(
        name="experts: weights before the down projection",
        site="experts",
        # Mixtral's weights are fp32: what they give is rounded to what the GEMM takes.
        changes=((_WEIGHT, "pass"), (_DOWN, f"{_WEIGHT}; {_ROUNDED}; {_DOWN}")),
        answers=("score_site=activation",),
    ),
    Patch(
        name="experts: gelu", site="experts", changes=((_ACT, "current_hidden_states = nn.functional.gelu(gate) * up"),)
    ),
    Patch(
        name="experts: gate and up swapped",
        site="experts",
        changes=((_ACT, _ACT.replace("gate) * up", "up) * gate")),),
        answers=("fault=gate-and-up-exchanged",),
    ),
    Patch(
        name="experts: the next expert's down projection",
        site="experts",
        changes=((_DOWN, _DOWN.replace("[expert_idx]", "[(expert_idx + 1) % self.num_experts]")),),
    ),
    Patch(
        name="combine: accumulated in fp32",
        site="experts",
        changes=(
            (_ZERO, "final_hidden_states = torch.zeros_like(hidden_states, dtype=torch.float32)"),
            (_RETURN, "return final_hidden_states.to(hidden_states.dtype)"),
        ),
        # Mixtral's weights are fp32: its products are then not rounded either.
        answers=("accumulate=fp32", "accumulate=fp32 with weighted=fp32"),
    ),
    Patch(
        name="combine: products in fp32",
        site="experts",
        changes=(
            (
                _WEIGHT,
                _ADDED,
            ),
        ),
        answers=("weighted=fp32",),
    ),
    Patch(
        name="combine: experts in descending order",
        site="experts",
        changes=((_HITS, "for expert_idx in expert_hit.flip(0):"),),
        answers=("order=reverse",),
        # Mixtral adds two rows, in either order.
        families=("qwen3_moe", "qwen2_moe"),
    ),
    Patch(name="combine: half of the sum", site="experts", changes=((_RETURN, "return final_hidden_states * 0.5"),)),
    Patch(
        name="shared expert: silu in fp32",
        site="shared",
        changes=(
            (
                "self.act_fn(self.gate_proj(x)) * self.up_proj(x)",
                "(self.act_fn(self.gate_proj(x).float()) * self.up_proj(x).float()).to(x.dtype)",
            ),
        ),
        answers=("activation=fp32",),
        families=("qwen2_moe",),
    ),
    Patch(
        name="shared expert: no activation",
        site="shared",
        changes=(("self.act_fn(self.gate_proj(x)) * self.up_proj(x)", "self.gate_proj(x) * self.up_proj(x)"),),
        families=("qwen2_moe",),
    ),
    Patch(
        name="linear: inputs in fp8",
        site="linear",
        changes=((_GEMM, "input = input.to(torch.float8_e4m3fn).to(input.dtype); " + _GEMM),),
    ),
    Patch(
        name="linear: weights in fp8",
        site="linear",
        changes=((_GEMM, "return F.linear(input, self.weight.to(torch.float8_e4m3fn).to(input.dtype), self.bias)"),),
    ),
    Patch(
        name="head: logits in fp32",
        site="head",
        changes=((_GEMM, "return F.linear(input.float(), self.weight.float())"),),
        answers=("output=fp32",),
    ),
    Patch(
        name="head: logits capped",
        site="head",
        changes=((_GEMM, "return 5 * torch.tanh(F.linear(input, self.weight) / 5)"),),
    ),
)
