"""Rotary position embedding: the cos/sin table and its application to queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeparity.ops import measured
from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Op, Parameter, row_by_row
from moeparity.ops.memory import Memory, Shapes


def _table_widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [params["dim"]] * 2


def _misfit(params: Mapping[str, Any]) -> str | None:
    if params["dim"] % 2:
        return f"dim is {params['dim']}; rotary embedding needs an even number."
    if params["dim"] == 2 and params["rope"].get("rope_type") == "dynamic":
        return "dim is 2; rope_type dynamic needs more, since its formula divides by dim - 2."
    return None


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """Dynamic frequencies are those of the longest sequence, so they depend on the other sequences."""
    return bool(params["rope"].get("rope_type") == "dynamic")


def _as_queries_and_keys(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[:2]


ROTARY = Op(
    name="rotary",
    says="cos and sin of position * inverse frequency: positions [B, T] -> cos, sin [B, T, dim], both halves alike.",
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
    ),
    attributes=(
        site(
            "output",
            "cos and sin, computed in fp32 (in fp64 for fp64), are rounded to this dtype",
            measured=measured.ROPE,
        ),
    ),
    sees_rows=_sees_rows,
    family="embedding",
    integers=("positions",),
    misfit=_misfit,
    memory=Memory(widths=_table_widths),
    kernel="rope:rotary",
    source="transformers 5.17.0 and 5.23.0, *RotaryEmbedding.forward, modeling_rope_utils._compute_*_parameters",
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
    sees_rows=row_by_row,
    token_axis=2,
    keeps_heads=True,
    memory=Memory(widths=_as_queries_and_keys),
    kernel="rope:rope",
    source="transformers 5.17.0 and 5.23.0, apply_rotary_pos_emb, apply_rotary_pos_emb_interleave; read: vLLM 0.33.0, "
    "pos_encoding_kernels.cu; SGLang 0.5.23, rotary_embedding",
)
