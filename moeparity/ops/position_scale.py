"""Queries scaled by their position, a temperature that grows with the context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.ops.attribute import Attribute, site
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Tokens, row_by_row
from moeparity.ops.memory import Memory, elementwise

POSITIONS, PLACES = "positions", "places"
LOG, LOG1P = "log", "log1p"


def _misfit(params: Mapping[str, Any]) -> str | None:
    if not params["every"] > 0:
        return f"every is {params['every']}; expected a number of tokens above 0."
    return None


POSITION_SCALE = Op(
    name="position_scale",
    says="x * (1 + share * log(1 + floor((position + first) / every))), the temperature that Llama 4 and Mistral give "
    "queries by their position: x [B, T, H, D], positions [B, T], mask [B, T] -> [B, T, H, D].",
    inputs=("x", "positions", "mask"),
    reads={"positions": ({"counted": (POSITIONS,)},), "mask": ({"counted": (PLACES,)},)},
    parameters=(
        Parameter(name="share", type=float, says="what the logarithm is multiplied by; 0: nothing is scaled"),
        Parameter(name="every", type=(int, float), says="after so many tokens the factor grows"),
        Parameter(
            name="first", type=int, required=False, default=0, says="the position that the first token counts as"
        ),
    ),
    attributes=(
        Attribute(
            name="counted",
            kind="semantics",
            default=POSITIONS,
            values=(POSITIONS, PLACES),
            says="what counts: a token's position; or its place among all tokens of its row that a step sees, padding "
            "and the sequences before it in a pack included (Llama 4 of transformers)",
        ),
        Attribute(
            name="form",
            kind="form",
            default=LOG,
            values=(LOG, LOG1P),
            says="log(1 + n), or log1p(n), in fp32 (in fp64 where the factor is)",
        ),
        site("factor", "the factor is rounded to this dtype before it meets x"),
        site("output", "the product is rounded to this dtype"),
    ),
    tokens=Tokens(sees_rows=row_by_row, history=("mask",)),
    integers=("positions",),
    refusals=Refusals(parameters=_misfit),
    cut=Cut(keeps_heads=True),
    memory=Memory(scratch=elementwise),
    kernel="position_scale:position_scale",
    source="transformers 5.23.0, Llama4TextAttention.forward; models/mistral4/modeling_mistral4.py "
    "get_llama_4_attn_scale",
)
