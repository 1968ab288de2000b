"""Every value of every attribute of every op, and which are planted together; imports no torch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from moeparity.ops.attribute import Attribute, Value
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from tests.planted import moe as planted_moe
from tests.planted import quantised as planted_quantised
from tests.planted.ranks import CELLS, WHOLE_NUMBERS

SEQUENCES, TOKENS = 2, 16

MODEL_OF = {
    "mla": "deepseek_v3",
    "mla_expand": "deepseek_v3",
    # Behind a projection whose inputs 3, 4, 8 and 16 ranks can share, and before a shared expert.
    "all_reduce": "deepseek_v3",
    # The bias of a row-wise projection.
    "linear:bias": "qwen3_moe_mha",
    **planted_moe.MODEL_OF,
    **planted_quantised.MODEL_OF,
    "swiglu": "deepseek_v3",
    "sigmoid_gate": "qwen2_moe",
    "sigmoid_gate:softplus": "laguna",
    "clamp": "olmoe_clip",
    "place_images": "qwen3_vl_moe",
    "add_images": "qwen3_vl_moe",
    "scale": "granitemoe",
    "silu": "minimax",
    "gated_norm": "qwen3_next",
    "layer_norm": "cohere2_moe",
    "indexer": "deepseek_v32",
    "position_scale": "mistral4",
    "unweighted_norm": "llama4",
    # Where x has another dtype than the model's form rounds to.
    "gated_norm:normalized=input": "kimi_linear",
    "relu2": "nemotron_h",
    # With rows of 37 elements, fp32 and at most three of them, a GEMM of 74 columns and two of 37 differ.
    "experts:gate_up": "qwen3_moe_odd",
    # With grouped queries the keys are copied anyway.
    "attention:kv_layout": "qwen3_moe_mha",
    **dict.fromkeys(("attention:shifted", "attention:sink", "attention:sink_as"), "gpt_oss"),
    "attention:merge=segments": "qwen3_moe_wide_heads",
    "mla:merge=segments": "deepseek_v3_wide_values",
    "rope:layout": "deepseek_v3",
    # A norm's bf16 weight times its bf16 rows leaves 16 bits, whose product with cos is exact.
    "rope:contraction": "qwen2",
    # It takes no heads of 32.
    "rms_norm:order=sglang.rms_norm": "qwen2_moe",
}
"""Op, attribute or value -> fixture, where it is not the shipped checkpoint: what Qwen3-MoE lacks, or a shape."""

SHORT = {"experts:gate_up": (8, 4, 1), "attention:kv_layout": (3, 7, 3), **planted_moe.SHORT}
# So many tokens that a small cache holds fewer queries, or keys, than there are.
SHORT |= dict.fromkeys(("attention:l2_bytes", "mla:l2_bytes"), (2, 72, 2))
# A score decides, rounded or not, where many keys come near one another.
SHORT |= {f"indexer:{name}": (2, 160, 2) for name in ("scores", "weights", "total")}
SHORT |= planted_quantised.SHORT
SHORT |= dict.fromkeys(("all_reduce:channels", "all_reduce:protocol"), CELLS)
"""Attribute -> sequences, tokens and micro-batch, where it matters for small shapes, or shows in many tokens, only."""

FEW = (2, 6, 2)
"""The same for GEMMs in orders written out, which are slow, and for ranks."""

NUMBERS: dict[str, float] = {
    "rms_norm:eps": 1e-3,
    "rms_norm:offset": 1.0,
    "gated_norm:eps": 1e-3,
    "layer_norm:eps": 1e-3,
    "unweighted_norm:eps": 1e-3,
    "router:renormalize_eps": 1e-2,
    "log_probs:temperature": 0.7,
    "log_probs:soft_cap": 2.0,
    "log_probs:repetition_penalty": 1.3,
    "log_probs:presence_penalty": 0.5,
    "log_probs:frequency_penalty": 0.5,
    "log_probs:top_p": 0.9,
    "log_probs:min_p": 0.05,
    "kv_cache:k_scale": 0.7,
    "kv_cache:v_scale": 0.7,
    **planted_quantised.NUMBERS,
}
"""What is planted where any number is allowed."""

ADAPTER = "adapter"
"""The parameter of a node that has a LoRA adapter beside its weight."""

GEMMS = ("linear", "gate", "lm_head")
FORMS = ("order", "rows", "splits", "split", "splits_order")
ATTENDS = ("attention", "mla")

ORDERS: dict[str, tuple[str, ...]] = {
    "combine:order": (
        "rotate(1, 1)",
        "rotate(-1, -1)",
        "fold_hi(skip)",
        "blocks(2) | sequential",
        "lanes(2) | sequential",
        "threads(2, vector=2, accumulate=fp32, round=bf16) | reverse",
        "sequential(kahan)",
        "sequential(fma)",
        "fused(2)",
        "tree(0+3+(1+2)+(4+5))",
        "tree([0+1+2+3+4+5])",
        "cascade",
        "unordered(1)",
    ),
    **planted_moe.ORDERS,
    **{f"{op}:order": ("lanes(4) | fold_lo", "sequential(fma)") for op in (*GEMMS, "experts")},
    **{f"{op}:kv_b_order": ("sequential(fma)",) for op in ("mla", "mla_expand")},
    **{f"{op}:splits_order": ("tree(0+2+(1+3))",) for op in (*GEMMS, "experts")},
    "all_reduce:order": ("rotate(1, 1)", "tree(0+2+(1+3))"),
    "rms_norm:order": (
        "cascade",
        "sequential(fma)",
        "lanes(3) | reverse",
        "threads(4, vector=8) | fold_hi(2) | fold_lo",
    ),
    **{f"{op}:denominator": ("lanes(8) | fold_hi",) for op in ATTENDS},
    **{f"{op}:row_sum": ("lanes(8) | fold_hi",) for op in ATTENDS},
    **{f"{op}:{name}": ("sequential(fma)",) for op in ATTENDS for name in ("scores_order", "values_order")},
    **{f"{op}:splits_order": ("sequential(fma)",) for op in ATTENDS},
    "log_probs:order": ("blocks(64) | sequential", "lanes(8) | fold_hi"),
    "log_probs:ranks": ("tree(0+2+(1+3))",),
}
"""Orders written out, planted beside the words where any order is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One value of one attribute, to be planted."""

    op: Op
    attribute: Attribute
    value: Value

    @property
    def label(self) -> str:
        return f"{self.place}={self.value}"

    @property
    def place(self) -> str:
        return f"{self.op.name}:{self.attribute.name}"

    @property
    def model(self) -> str:
        models = (MODEL_OF[key] for key in (self.label, self.place, self.op.name) if key in MODEL_OF)
        return next(models, "quickstart")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, tokens of each, and micro-batch."""
        few = self.op.name == "all_reduce" or self.attribute.needs in ("pieces", "partials")
        few |= self.attribute.kind == "placement" or self.place in WHOLE_NUMBERS
        few |= self.op.name in (*GEMMS, "experts") and self.attribute.name in FORMS
        return SHORT.get(self.place, FEW if few else (SEQUENCES, TOKENS, SEQUENCES))


def all_values() -> list[Planted]:
    """Every value of every attribute of every op, but of those with a state, which are planted where steps hand it on
    (`tests/planted/test_states.py`), that of a reward model (`tests/bisection/rewards`), and those of an adapter, which
    are planted beside one (`tests/planted/test_adapters.py`).
    """
    return [
        Planted(op=op, attribute=attribute, value=value)
        for op in OPS.values()
        if op.tokens.state is None and not op.tokens.pairs
        for attribute in op.attributes
        if attribute.parameter != ADAPTER
        for value in values_of(op, attribute)
    ]


def values_of(op: Op, attribute: Attribute) -> list[Value]:
    """The words allowed, and the listed number or orders where any are."""
    place = f"{op.name}:{attribute.name}"
    number = [NUMBERS[place]] if attribute.number else []
    whole = [WHOLE_NUMBERS[place]] if place in WHOLE_NUMBERS else []
    return [*attribute.values, *number, *whole, *(ORDERS[place] if attribute.order else ())]


VALUES = {planted.label: planted for planted in all_values()}

TOGETHER = 40
"""Candidates in one pass: some 200 walkers, whose values of a few tokens are some MB."""

Group = tuple[str, ...]


def drawn_shape(group: Group) -> tuple[int, int, int]:
    """Sequences, tokens of each, and a micro-batch: in a third of the groups, by a seeded draw, one sequence goes at a
    time, unless what is planted asks for a shape.
    """
    planted = VALUES[group[0]]
    sequences, tokens, micro_batch = planted.shape
    if planted.place in SHORT:
        return planted.shape
    return sequences, tokens, random.Random(group[0]).choice((1, micro_batch, micro_batch))  # noqa: S311


@cache
def groups() -> dict[str, Group]:
    """For each label the labels that it is planted beside: of the same checkpoint, the same tokens and micro-batch."""
    alike: dict[tuple[str, tuple[int, int, int]], list[str]] = {}
    for label, planted in VALUES.items():
        alike.setdefault((planted.model, planted.shape), []).append(label)
    cut = (tuple(labels[i : i + TOGETHER]) for labels in alike.values() for i in range(0, len(labels), TOGETHER))
    return {label: group for group in cut for label in group}
