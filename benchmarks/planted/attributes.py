"""What the decoy suite plants: node, attribute and the candidate's value, by background and by how large it is meant.

The lists only say what is drawn together. Who is a culprit is for the factorial to say, whatever list one comes from.
`layers[L]` stands for one layer, or for all of them. Free of torch and of moeparity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Kind = Literal["large", "small", "none"]
Value = str | float

_A, _M = "layers[L].attention", "layers[L].moe"

FP32: Mapping[Kind, tuple[tuple[str, Value], ...]] = {
    # Rounded to 8 bits where the reference keeps 24, or another function.
    "large": (
        (f"{_A}.norm:normalized", "bf16"),
        (f"{_A}.norm:output", "bf16"),
        (f"{_A}.q_norm:output", "bf16"),
        (f"{_A}.k_norm:normalized", "bf16"),
        ("rotary:output", "bf16"),
        (f"{_A}.rope:products", "bf16"),
        (f"{_A}.rope:output", "bf16"),
        (f"{_A}.q_proj:output", "bf16"),
        (f"{_A}.v_proj:inputs", "bf16"),
        (f"{_A}.attend:scores", "bf16"),
        (f"{_A}.attend:probabilities", "bf16"),
        (f"{_A}.attend:output", "bf16"),
        (f"{_A}.o_proj:inputs", "bf16"),
        (f"{_A}.residual:output", "bf16"),
        (f"{_M}.norm:normalized", "bf16"),
        (f"{_M}.norm:eps", 0.01),
        (f"{_M}.gate:inputs", "bf16"),
        (f"{_M}.gate:output", "bf16"),
        (f"{_M}.router:scores", "bf16"),
        (f"{_M}.router:weights", "bf16"),
        (f"{_M}.router:renormalize_eps", 0.005),
        (f"{_M}.experts:projections", "bf16"),
        (f"{_M}.experts:activation", "bf16"),
        (f"{_M}.experts:product", "bf16"),
        (f"{_M}.experts:output", "bf16"),
        (f"{_M}.combine:weighted", "bf16"),
        (f"{_M}.combine:accumulate", "bf16"),
        (f"{_M}.shared_swiglu:activation", "bf16"),
        (f"{_M}.shared:activation", "bf16"),
        (f"{_M}.shared_add:output", "bf16"),
        ("norm:normalized", "bf16"),
        ("norm:output", "bf16"),
        ("norm:eps", 0.02),
        ("lm_head:inputs", "bf16"),
        ("lm_head:output", "bf16"),
    ),
    # Another form, order or narrower step: some of the last bits of fp32.
    "small": (
        (f"{_A}.norm:order", "sequential"),
        (f"{_A}.norm:rsqrt", "ieee"),
        (f"{_A}.norm:association", "weight_rstd_first"),
        (f"{_A}.q_norm:rsqrt", "sqrt_div"),
        (f"{_A}.attend:softmax", "divide"),
        (f"{_A}.attend:softmax", "reciprocal"),
        (f"{_A}.attend:implementation", "sdpa"),
        (f"{_A}.attend:scores", "fp64"),
        (f"{_M}.norm:association", "weight_x_first"),
        (f"{_M}.norm:square", "fp64"),
        (f"{_M}.router:softmax", "divide"),
        (f"{_M}.router:softmax", "reciprocal"),
        (f"{_M}.router:sigmoid", "exp"),
        (f"{_M}.router:sigmoid", "tanh"),
        (f"{_M}.router:renormalize", "reciprocal"),
        (f"{_M}.router:renormalize_order", "reverse"),
        (f"{_M}.router:timing", "after_topk"),
        (f"{_M}.experts:gate_up", "split"),
        (f"{_M}.experts:product", "fp64"),
        (f"{_M}.combine:order", "reverse"),
        (f"{_M}.combine:leaves", "slot"),
        (f"{_M}.combine:accumulate", "fp64"),
        ("norm:order", "reverse"),
        ("norm:association", "weight_x_first"),
        ("lm_head:output", "fp64"),
    ),
    # Set, and without effect for these sizes and weights.
    "none": (
        (f"{_A}.norm:mean", "reciprocal"),
        (f"{_A}.norm:eps", "same"),
        (f"{_A}.norm:weight", "bf16"),
        (f"{_A}.k_norm:mean", "divide"),
        (f"{_A}.attend:kv_layout", "cached"),
        (f"{_M}.norm:mean", "divide"),
        (f"{_M}.norm:eps", "same"),
        (f"{_M}.norm:weight", "bf16"),
        (f"{_M}.router:tie_break", "lowest_index"),
        (f"{_M}.router:tie_break", "highest_index"),
        (f"{_M}.router:rank_on", "logits"),
        (f"{_M}.router:renormalize", "scale_first"),
        (f"{_M}.router:correction", "fp64"),
        (f"{_M}.router:quotient", "fp64"),
        ("embed:output", "bf16"),
        ("norm:mean", "reciprocal"),
        ("norm:eps", "same"),
        ("norm:weight", "bf16"),
    ),
}

BF16: Mapping[Kind, tuple[tuple[str, Value], ...]] = {
    # One rounding fewer, or one of another kind: in bf16 any of them moves every logit by about as much.
    "large": (
        (f"{_A}.norm:normalized", "fp32"),
        (f"{_A}.k_norm:normalized", "fp32"),
        ("rotary:output", "fp32"),
        (f"{_A}.rope:products", "fp32"),
        (f"{_A}.attend:scores", "fp32"),
        (f"{_A}.attend:probabilities", "fp32"),
        (f"{_A}.attend:implementation", "sdpa"),
        (f"{_A}.attend:output", "fp32"),
        (f"{_A}.residual:output", "fp32"),
        (f"{_M}.norm:normalized", "fp32"),
        (f"{_M}.router:scores", "bf16"),
        (f"{_M}.router:weights", "fp32"),
        (f"{_M}.experts:activation", "fp32"),
        (f"{_M}.experts:product", "fp32"),
        (f"{_M}.experts:output", "fp32"),
        (f"{_M}.combine:weighted", "fp32"),
        (f"{_M}.combine:accumulate", "fp32"),
        (f"{_M}.combine:order", "reverse"),
        (f"{_M}.combine:leaves", "slot"),
        (f"{_M}.shared_swiglu:activation", "fp32"),
        (f"{_M}.shared:activation", "fp32"),
    ),
    "small": (
        (f"{_A}.norm:rsqrt", "ieee"),
        (f"{_A}.attend:softmax", "reciprocal"),
        (f"{_M}.router:softmax", "divide"),
        (f"{_M}.router:renormalize", "reciprocal"),
        ("norm:rsqrt", "sqrt_div"),
    ),
    "none": (
        (f"{_A}.norm:mean", "reciprocal"),
        (f"{_A}.norm:eps", "same"),
        (f"{_A}.norm:weight", "bf16"),
        (f"{_A}.k_norm:mean", "divide"),
        (f"{_A}.attend:kv_layout", "cached"),
        (f"{_M}.norm:mean", "divide"),
        (f"{_M}.norm:eps", "same"),
        (f"{_M}.norm:weight", "bf16"),
        (f"{_M}.router:rank_on", "logits"),
        (f"{_M}.router:renormalize", "scale_first"),
        (f"{_M}.router:correction", "fp64"),
        (f"{_M}.router:quotient", "fp64"),
        (f"{_M}.experts:gate_up", "split"),
        ("embed:output", "fp32"),
        ("norm:mean", "reciprocal"),
        ("norm:eps", "same"),
        ("norm:weight", "bf16"),
    ),
}

SEMANTIC: tuple[tuple[str, Value], ...] = (
    (f"{_M}.router:renormalize_eps", 0.1),
    (f"{_A}.norm:eps", 0.3),
    (f"{_M}.norm:eps", 0.3),
    (f"{_A}.q_norm:eps", 0.3),
    ("norm:eps", 0.2),
    (f"{_M}.norm:offset", 0.1),
    (f"{_A}.norm:offset", 0.1),
)
"""Another function, whose effect stands out of bf16's noise."""

ONLY: Mapping[str, frozenset[str]] = {
    "q_norm": frozenset({"qwen3_moe", "glm4_moe"}),
    "k_norm": frozenset({"qwen3_moe", "glm4_moe"}),
    "shared_swiglu": frozenset({"qwen2_moe", "glm4_moe"}),
    "shared_add": frozenset({"qwen2_moe", "glm4_moe"}),
    "shared": frozenset({"qwen2_moe"}),
    "router:sigmoid": frozenset({"glm4_moe"}),
    "router:correction": frozenset({"glm4_moe"}),
    "router:quotient": frozenset({"glm4_moe"}),
    "router:softmax": frozenset({"qwen3_moe", "mixtral", "qwen2_moe"}),
    "router:rank_on": frozenset({"qwen3_moe", "mixtral", "qwen2_moe"}),
    "router:timing": frozenset({"qwen3_moe", "mixtral"}),
    "router:renormalize": frozenset({"qwen3_moe", "mixtral", "glm4_moe"}),
    "router:renormalize_order": frozenset({"qwen3_moe", "mixtral", "glm4_moe"}),
    "router:renormalize_eps": frozenset({"qwen3_moe", "mixtral", "glm4_moe"}),
    # They are fp32 with the others already.
    "router:weights=fp32": frozenset({"qwen3_moe", "qwen2_moe"}),
    # Its slots are unsorted, and sorting them is no way to break ties only.
    "router:tie_break": frozenset({"qwen3_moe", "mixtral", "qwen2_moe"}),
}
"""Families that have a node, an attribute or a value; all of them where it is not listed."""

ALONE: frozenset[str] = frozenset(
    {"association", "implementation", "softmax", "timing", "rank_on", "order", "quotient"}
)
"""Attributes that ask something of others at their node: a case that has one has no other there."""
