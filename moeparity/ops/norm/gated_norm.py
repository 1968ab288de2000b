"""RMSNorm of each head or group of channels, gated: what a gated delta net and Mamba 2 end with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.dtypes import FLOAT_NAMES, MODEL, OF_INPUT
from moeparity.ops.attribute import EPS, LOGISTIC, Attribute, site
from moeparity.ops.declaration import Cut, Op, Parameter, Role, Tokens, WeightPort, sees_rows_by_sigmoid
from moeparity.ops.memory import Call, Memory, Shapes, elementwise

SILU, SIGMOID = "silu", "sigmoid"
BEFORE, AFTER = "before", "after"


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[:1]


def _scratch(call: Call) -> int:
    """What a norm needs, and beside it the gate that was activated, and one that is copied out of its heads."""
    return 2 * elementwise(call)


GATED_NORM = Op(
    name="gated_norm",
    says="x / sqrt(mean(x^2) + eps) * weight * silu(gate), or * sigmoid(gate), the mean over each head: x [B, T, "
    "heads * D], gate of as many numbers, perhaps in other heads, weight [D] -> [B, T, heads * D]. Mamba 2 has the "
    "gate before the norm, x * silu(gate) in fp32 in place of x, means over groups of channels and a weight for all.",
    inputs=("x", "gate"),
    weights=(WeightPort(name="weight", says="[width of a head], or of groups [heads * D]", initial=1.0),),
    parameters=(
        Parameter(name="eps", type=float, says="added to the mean square"),
        Parameter(
            name="function",
            type=str,
            required=False,
            default=SILU,
            values=(SILU, SIGMOID),
            says="what is made of the gate",
        ),
        Parameter(
            name="gated",
            type=str,
            required=False,
            default=AFTER,
            values=(BEFORE, AFTER),
            says="whether x meets the gate before the norm or after it",
        ),
        Parameter(
            name="groups",
            type=(int, type(None)),
            required=False,
            default=None,
            says="into how many groups the channels are cut for the mean; null: the weight is as wide as a head",
        ),
    ),
    attributes=(
        replace(
            site(
                "normalized",
                "x * rsqrt(..) is rounded to this dtype before the weight is multiplied: `model` is the Hugging Face "
                "form of a gated delta net, `input`, x's own dtype, that of Mamba 2",
            ),
            values=(MODEL, OF_INPUT, *FLOAT_NAMES),
        ),
        replace(
            site("weighted", "the product with the weight is rounded to this dtype before it meets the gate"),
            when_parameters={"gated": (AFTER,)},
        ),
        site(
            "activation",
            "silu(gate) or sigmoid(gate) is rounded to this dtype before it meets the norm",
            default="fp32",
        ),
        site(
            "output", "the product with the gate, or with the weight where that is the last, is rounded to this dtype"
        ),
        LOGISTIC,
        Attribute(
            name="gated",
            kind="semantics",
            default="config",
            values=("config", BEFORE, AFTER),
            says="whether x meets the gate before the norm or after it, in place of where the model has it",
        ),
        EPS,
    ),
    tokens=Tokens(sees_rows=sees_rows_by_sigmoid),
    role=Role(family="norms"),
    cut=Cut(joins_heads=True),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="gated_norm:gated_norm",
    source="transformers 5.23.0, forward of Qwen3NextRMSNormGated, KimiLinearRMSNormGated, "
    "GraniteMoeHybridRMSNormGated and NemotronHRMSNormGated",
)
