"""RMSNorm over the last axis without a weight."""

from __future__ import annotations

from moeparity.ops.attribute import EPS, site
from moeparity.ops.declaration import Cut, Op, Parameter, Role, Tokens, row_by_row
from moeparity.ops.memory import Memory, elementwise

UNWEIGHTED_NORM = Op(
    name="unweighted_norm",
    says="x * rsqrt(mean(x^2) + eps) over the last axis, in fp32 (in fp64 where x or the output is): RMSNorm without a "
    "weight, which Llama 4 calls an L2 norm.",
    inputs=("x",),
    parameters=(Parameter(name="eps", type=float, says="added to the mean square"),),
    attributes=(site("output", "the product is rounded to this dtype"), EPS),
    tokens=Tokens(sees_rows=row_by_row),
    role=Role(family="norms"),
    cut=Cut(keeps_heads=True),
    memory=Memory(scratch=lambda call: 2 * elementwise(call)),
    kernel="unweighted_norm:unweighted_norm",
    source="transformers 5.23.0, Llama4TextL2Norm.forward",
)
