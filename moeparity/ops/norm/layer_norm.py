"""LayerNorm over the last axis."""

from __future__ import annotations

from moeparity.ops.attribute import EPS, Attribute, site
from moeparity.ops.declaration import Cut, Op, Parameter, Role, Tokens, WeightPort, row_by_row
from moeparity.ops.memory import Memory, elementwise

NATIVE, STEPS = "native", "steps"
_STEPS = {"form": (STEPS,)}

LAYER_NORM = Op(
    name="layer_norm",
    says="(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias over the last axis.",
    inputs=("x",),
    weights=(
        WeightPort(name="weight", says="[width of the last axis]", initial=1.0),
        WeightPort(name="bias", says="[width of the last axis]", required=False, initial=0.0),
    ),
    parameters=(Parameter(name="eps", type=float, says="added to the variance"),),
    attributes=(
        Attribute(
            name="form",
            kind="form",
            default=NATIVE,
            values=(NATIVE, STEPS),
            says="torch's own kernel; or written out in fp32 (fp64 where x is), each step rounded: the mean, what is "
            "left of x without it, the mean of its squares, rsqrt, two products, and the bias (Cohere)",
        ),
        site(
            "normalized",
            "(x - mean) * rsqrt(..) is rounded to this dtype before the weight",
            default="fp32",
            when=_STEPS,
        ),
        site("output", "the product with the weight, and the bias added to it, is rounded to this dtype", edge=True),
        EPS,
    ),
    tokens=Tokens(sees_rows=row_by_row),
    role=Role(family="norms"),
    cut=Cut(keeps_heads=True),
    memory=Memory(scratch=lambda call: 2 * elementwise(call)),
    kernel="layer_norm:layer_norm",
    source="transformers 5.23.0, Cohere2MoeLayerNorm.forward; torch.nn.functional.layer_norm, torch 2.13",
)
