"""The routed experts and the combine of their rows."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.numerics.orders import EXPLICIT, NATIVE, parse
from moeparity.ops.declaration import Attribute, Op, Shapes, Value, WeightPort, site

_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """torch's grouped GEMM knows no fp64, and takes rows that are multiples of 16 bytes only, as transformers finds."""
    if values["implementation"] != "grouped":
        return None
    if "fp64" in (values["projections"], values["product"], values["output"]):
        return "implementation", "torch's grouped GEMM has no fp64. Set `loop`, or other dtypes."
    for port, site_name in (("gate", "projections"), ("down", "product")):
        width, dtype = shapes[port][-1], str(values[site_name])
        if width * _BYTES[dtype] % 16:
            reason = (
                f"torch's grouped GEMM needs rows of a multiple of 16 bytes, and {port} has rows of {width} {dtype}. "
                "transformers refuses this checkpoint here too; set `loop`."
            )
            return "implementation", reason
    return None


EXPERTS = Op(
    name="experts",
    says="down(silu(gate(x)) * up(x)) of each token's chosen experts: x [B, T, H], ids [B, T, K] -> rows [B, T, K, H].",
    inputs=("x", "ids"),
    weights=(
        WeightPort(name="gate", says="[experts, I, H]", each=True),
        WeightPort(name="up", says="[experts, I, H]", each=True),
        WeightPort(name="down", says="[experts, H, I]", each=True),
    ),
    attributes=(
        Attribute(
            name="implementation",
            kind="form",
            default="loop",
            values=("loop", "grouped"),
            says="one GEMM per expert that was hit, or torch's grouped GEMM over tokens sorted by expert",
        ),
        Attribute(
            name="gate_up",
            kind="form",
            default="fused",
            values=("fused", "split"),
            says="gate and up as one GEMM of width 2I, or as two of width I",
        ),
        site("projections", "inputs and results of the gate and up GEMMs"),
        site("activation", "silu(gate) is rounded to this dtype before it meets up; fp32 is the one-rounding SwiGLU"),
        site("product", "silu(gate) * up is rounded to this dtype"),
        site("output", "the down projection's result, one row per token and slot, is rounded to this dtype"),
    ),
    refuses=_refuses,
    kernel="experts:experts",
    source="transformers 5.17.0 and 5.23.0, *Experts.forward (loop), integrations/moe.py grouped_mm_experts_forward",
)


def _refuses_order(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """A tree for another number of rows; an fma, which is one for two fp32 operations, with a 16-bit site between."""
    if values["order"] == NATIVE:
        return None
    order, rows = parse(str(values["order"])), shapes.get("ids", (None,))[-1]
    if order.leaves is not None and rows is not None and order.leaves != rows:
        return "order", f"{order} adds up {order.leaves} rows, and each token has {rows}."
    narrow = [site for site in ("weighted", "accumulate") if values[site] not in {"fp32", "fp64"}]
    if order.fma and narrow:
        return "order", f"fma contracts two fp32 operations, and {narrow[0]} is {values[narrow[0]]}. Set it to fp32."
    return None


COMBINE = Op(
    name="combine",
    says="Weighted sum of a token's rows: rows [B, T, K, H], ids and weights [B, T, K] -> [B, T, H].",
    inputs=("rows", "ids", "weights"),
    attributes=(
        site("weighted", "row * routing weight is rounded to this dtype before it is added"),
        site("accumulate", "every addition is rounded to this dtype"),
        Attribute(
            name="leaves",
            kind="order",
            default="slot",
            values=("slot", "expert"),
            says="leaf i of the sum is the row of slot i, or the row of the token's i-th smallest expert id",
        ),
        Attribute(
            name="order",
            kind="order",
            default="native",
            values=(NATIVE, *EXPLICIT),
            order=True,
            says="in which order the leaves are added; `native` is torch's own sum, which accumulates in fp32, and is "
            "sequential where `accumulate` is another dtype, since torch has no such sum. Any other order can be "
            "written out in levels: `rotate(1, 1)`, `blocks(4) | sequential`, `tree((0+2)+(1+3))`; with `fma` the "
            "product goes into the addition unrounded, and `weighted` must be fp32",
        ),
        site("output", "the sum is rounded to this dtype"),
    ),
    reads={"ids": {"leaves": ("expert",)}},
    refuses=_refuses_order,
    kernel="experts:combine",
    source="transformers 5.17.0 and 5.23.0, *Experts.forward (index_add_ by expert), grouped_mm_experts_forward (sum)",
)
