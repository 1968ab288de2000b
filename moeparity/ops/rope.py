"""Rotary position embedding: the cos/sin table and its application to queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeparity.ops import measured
from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Role, Tokens, row_by_row
from moeparity.ops.memory import Call, Memory, Shapes

_AXES = 3
"""Time, height and width."""


def _table_widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [params["dim"]] * 2


def _misfit(params: Mapping[str, Any]) -> str | None:
    if params["dim"] % 2:
        return f"dim is {params['dim']}; rotary embedding needs an even number."
    kind = params["rope"].get("rope_type")
    if params["dim"] == 2 and kind in {"dynamic", "ntk_alpha"}:
        return f"dim is 2; rope_type {kind} needs more, since its formula divides by dim - 2."
    factors = params["rope"].get("short_factor")
    numbers = isinstance(factors, list) and all(type(factor) in {int, float} for factor in factors)
    if kind == "longrope" and (not numbers or len(factors or ()) != params["dim"] // 2):
        return f"short_factor of rope_type longrope needs one number for each of the {params['dim'] // 2} pairs."
    return _sections_misfit(params["sections"])


def _sections_misfit(sections: list[Any] | None) -> str | None:
    """Of sections that are no numbers of pairs. They need not add up to all pairs: the others turn by time."""
    if sections is None:
        return None
    if len(sections) != _AXES or any(type(count) is not int or count < 0 for count in sections):
        return f"mrope_section is {sections}; expected three whole numbers of at least 0."
    return None


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """Dynamic frequencies, and longrope's magnitude, are those of the longest sequence: they depend on the others."""
    return params["rope"].get("rope_type") in {"dynamic", "longrope"}


def _as_queries_and_keys(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[:2]


def _as_inputs_are(call: Call) -> Sequence[int]:
    """Views: the memory that they look at has no other owner."""
    return call.input_bytes


_VIEWS = Memory(widths=_as_queries_and_keys, output_bytes=_as_inputs_are, scratch=lambda _: 0)

BY_HEAD = Op(
    name="by_head",
    says="Queries and keys as attention takes them, where no rope hands them over (NoPE, norms behind the rope): "
    "q [B, T, H, D], k [B, T, G, D] (or [B, T, D]: one shared head) -> [B, H, T, D], [B, G, T, D], as views.",
    inputs=("q", "k"),
    outputs=("q", "k"),
    tokens=Tokens(sees_rows=row_by_row, axis=2),
    cut=Cut(keeps_heads=True),
    memory=_VIEWS,
    kernel="rope:by_head",
    source="transformers 5.23.0, ExaoneMoeAttention.forward",
)

BY_TOKEN = Op(
    name="by_token",
    says="Queries and keys from behind a rope, as norms take them: q [B, H, T, D], k [B, G, T, D] -> [B, T, H, D], "
    "[B, T, G, D], as views.",
    inputs=("q", "k"),
    outputs=("q", "k"),
    tokens=Tokens(sees_rows=row_by_row, input_axes={"q": 2, "k": 2}),
    cut=Cut(keeps_heads=True),
    memory=_VIEWS,
    kernel="rope:by_token",
    source="transformers 5.23.0, HunYuanMoEV1Attention.forward",
)

ROTARY = Op(
    name="rotary",
    says="cos and sin of position * inverse frequency: positions [B, T] -> cos, sin [B, T, dim], both halves alike. "
    "With `sections` positions are [B, T, 3], in time, height and width.",
    inputs=("positions",),
    outputs=("cos", "sin"),
    parameters=(
        Parameter(name="dim", type=int, says="width that is rotated"),
        Parameter(
            name="rope", type=dict, says="rope_parameters of config.json: rope_type, rope_theta, what else it needs"
        ),
        Parameter(
            name="max_positions",
            type=int,
            says="max_position_embeddings; read by rope_type dynamic, and by yarn when `factor` is null",
        ),
        Parameter(
            name="sections",
            type=list,
            required=False,
            says="mrope_section: how many pairs turn by the position in time, height and width. Pairs 1, 4, 7, .. turn "
            "by height and 2, 5, 8, .. by width while these have any left, all others by time",
        ),
        Parameter(
            name="in_runs",
            type=bool,
            required=False,
            default=False,
            says="sections are runs of pairs: the first turn by time, those behind by height, then by width (GLM-4.5V)",
        ),
    ),
    attributes=(
        site(
            "output",
            "cos and sin, computed in fp32 (in fp64 for fp64), are rounded to this dtype",
            measured=measured.ROPE,
        ),
        Attribute(
            name="sines",
            kind="form",
            default="torch",
            values=("torch", "polar"),
            says="torch.cos and torch.sin of the angles; or torch.polar, which takes them of the C library on a CPU "
            "(DeepSeek-V2, whose halves of a pair are a complex number)",
        ),
    ),
    tokens=Tokens(sees_rows=_sees_rows),
    role=Role(family="embedding"),
    integers=("positions",),
    refusals=Refusals(parameters=_misfit),
    memory=Memory(widths=_table_widths),
    kernel="rope:rotary",
    source="transformers 5.17.0 and 5.23.0, *RotaryEmbedding.forward, modeling_rope_utils._compute_*_parameters; "
    "5.23.0, recomposition_frequencies of Qwen3VLMoeTextRotaryEmbedding and Glm4vMoeTextRotaryEmbedding",
)

ROPE = Op(
    name="rope",
    says="Rotates q [B, T, H, dim] and k [B, T, G, dim]; gives them as [B, H, T, dim] and [B, G, T, dim].",
    inputs=("q", "k", "cos", "sin"),
    outputs=("q", "k"),
    parameters=(
        Parameter(
            name="interleaved",
            type=bool,
            required=False,
            default=False,
            says="rotate pairs (2i, 2i+1), as DeepSeek does, instead of halves (i, i + dim/2)",
        ),
        Parameter(
            name="partial",
            type=bool,
            required=False,
            default=False,
            says="cos and sin cover the first columns only; the others are copied behind the rotated ones",
        ),
        Parameter(
            name="width",
            type=int,
            required=False,
            says="so many columns, the first, are rotated, by the first frequencies; null: as many as cos has",
        ),
    ),
    attributes=(
        site(
            "products",
            "x * cos and rotated x * sin are each rounded to this dtype before they are added: `model` is the Hugging "
            "Face form, three roundings; fp32 one rounding, as in the kernels of vLLM (cos and sin bf16) and SGLang "
            "(cos and sin fp32)",
            measured=measured.ROPE,
        ),
        Attribute(
            name="contraction",
            kind="form",
            default="none",
            values=("none", "cos", "sin"),
            when={"products": ("fp32",)},
            says="which of the two products is contracted with the addition into one fma, in fp32: none, x * cos, or "
            "rotated x * sin; compilers for GPUs choose one",
        ),
        site("output", "their sum is rounded to this dtype", cuts=True),
        Attribute(
            name="layout",
            kind="form",
            default="halves",
            values=("halves", "pairs"),
            parameter="interleaved",
            says="interleaved pairs are written as halves (transformers), or left in their places (engines' GPT-J "
            "form): the same values, which q @ k.T adds up in another order",
        ),
    ),
    tokens=Tokens(sees_rows=row_by_row, axis=2),
    cut=Cut(keeps_heads=True),
    memory=Memory(widths=_as_queries_and_keys),
    kernel="rope:rope",
    source="transformers 5.17.0 and 5.23.0, apply_rotary_pos_emb, apply_rotary_pos_emb_interleave; read: vLLM 0.33.0, "
    "pos_encoding_kernels.cu; SGLang 0.5.23, rotary_embedding",
)
