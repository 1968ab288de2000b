"""Rotary position embedding: the cos/sin table and its application to queries and keys."""

from __future__ import annotations

from moeparity.ops.declaration import Op, Parameter, site

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
    attributes=(site("output", "cos and sin, computed in fp32 (in fp64 for fp64), are rounded to this dtype"),),
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
            says="rotate pairs (2i, 2i+1) and write halves, as DeepSeek does, instead of halves (i, i + dim/2)",
        ),
        Parameter(
            name="partial",
            type=bool,
            required=False,
            default=False,
            says="cos and sin cover the first columns only; the others are copied behind the rotated ones",
        ),
    ),
    attributes=(
        site("products", "x * cos and rotated x * sin are each rounded to this dtype before they are added"),
        site("output", "their sum is rounded to this dtype"),
    ),
    kernel="rope:rope",
    source="transformers 5.17.0 and 5.23.0, apply_rotary_pos_emb, apply_rotary_pos_emb_interleave",
)
