"""The combine: the sum of a token's rows, with or without the shared expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.dtypes import CUT_NAMES
from moeparity.numerics.orders import EXPLICIT, NATIVE, parse
from moeparity.ops import experts
from moeparity.ops.attribute import ABOVE_1, Attribute, Value, site
from moeparity.ops.declaration import ChoiceElsewhere, Cut, Op, Parameter, Refusals, Role, Tokens, row_by_row
from moeparity.ops.measured import RANKS, SCORES, SUMS
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.placement import PARTIAL

ADD, FIRST, LAST, SLOT = "add", "first", "last", "slot"
"""How the shared expert's output is added to the routed sum."""


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses experts that do not divide by the ranks or lie on ranks in two ways, and a sum that no op makes."""
    ranks, count = int(values["expert"]), shapes["experts"][0]
    if ranks > 1 and shapes["partials of rows"][0] > 1:
        return "expert", "each expert is cut over ranks already (tensor). Cut experts in one way."
    if count % ranks:
        return "expert", f"{count} experts do not divide by {ranks} ranks."
    return _refuses_shared(shapes, values) or _refuses_order(shapes, values)


def _refuses_shared(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    shared, scaling = values.get("shared", ADD), values["scaling"]
    if shared == ADD:
        return None
    if shapes["partials"][0] > 1:
        return "shared", "every rank would add the shared expert to its partial sum. Set add."
    if shared in {FIRST, LAST} and scaling != "weights":
        return "shared", f"the scale is applied later (router:scaling is {scaling}), to both. Set slot, or add."
    if scaling in {"shared_add", "shared_fma"}:
        return "shared", f"router:scaling is {scaling}, and nothing is added there. Set add, or another scaling."
    if shared == FIRST and values["order"] == NATIVE:
        return "shared", "torch's own sum starts from nothing. Set an order."
    return None


def _refuses_order(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses a tree for another number of rows; and an fma, which is one instruction for two fp32 operations, with a
    16-bit rounding between them.
    """
    if values["order"] == NATIVE:
        return None
    order, rows = parse(str(values["order"])), shapes["top_k"][0] + (values.get("shared") == SLOT)
    if order.leaves not in {None, rows}:
        return "order", f"{order} adds up {order.leaves} rows, and each token has {rows}."
    if order.fma and values["score_site"] != experts.COMBINE:
        return (
            "order",
            f"fma contracts products, and rows have met their weights (score_site {values['score_site']}).",
        )
    if not order.fma or "weighted" not in values:
        # Rows whose experts are always weighted have no product here that could be contracted.
        return None
    narrow = [site for site in ("weighted", "accumulate") if values[site] not in {"fp32", "fp64"}]
    if narrow:
        return "order", f"fma contracts two fp32 operations, and {narrow[0]} is {values[narrow[0]]}. Set it to fp32."
    return None


def _by_rank(values: Mapping[str, Value]) -> int:
    return int(values.get("expert", 1))


def _combined(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    """One partial sum for each rank. In the order of slots there are at most as many as slots."""
    return max(inputs[0], min(pieces, params["top_k"]) if values["partials"] == "first_slot" else pieces)


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[0] // inputs[2]]


def _scratch(call: Call) -> int:
    if call.active.get("shared") == SLOT:
        apart = replace(call, active={**call.active, "shared": ADD})
        return 2 * call.tokens * call.inputs[0] * call.input_bytes[0] + 2 * _scratch(apart)
    rows = call.tokens * call.inputs[0]
    if call.active.get("order") == NATIVE and call.active.get("accumulate") == "fp32":
        return rows * (2 * call.wide + 2 * max(call.bytes_of("weighted"), call.input_bytes[0]))
    return 6 * call.wide * call.tokens * call.outputs[0]


COMBINE = Op(
    name="combine",
    says="Weighted sum of a token's rows: rows [B, T, K, H], ids and weights [B, T, K], shared [B, T, H] -> [B, T, H].",
    inputs=("rows", "ids", "weights", "shared"),
    optional=("shared",),
    parameters=(
        Parameter(name="experts", type=int, says="how many routed experts there are"),
        Parameter(name="top_k", type=int, says="how many of them a token chooses"),
        Parameter(name="scale", type=float, required=False, default=1.0, says="routed_scaling_factor"),
        Parameter(
            name="weighs",
            type=bool,
            required=False,
            default=True,
            says="rows meet their weights here, as far as `score_site` says so; not where experts always do",
        ),
    ),
    attributes=(
        replace(
            site(
                "weighted",
                "row * routing weight is rounded to this dtype before it is added",
                when={"score_site": (experts.COMBINE,)},
                measured=SCORES,
            ),
            parameter="weighs",
        ),
        site("accumulate", "every addition is rounded to this dtype", measured=SCORES),
        Attribute(
            name="leaves",
            kind="order",
            default="slot",
            values=("slot", "expert"),
            measured=SUMS,
            says="leaf i of the sum is the row of slot i, or the row of the token's i-th smallest expert id",
        ),
        Attribute(
            name="order",
            kind="order",
            default="native",
            values=(NATIVE, *EXPLICIT),
            order=True,
            measured=SUMS,
            says="in which order the leaves are added; `native` is torch's own sum, which accumulates in fp32, and is "
            "sequential where `accumulate` is another dtype, since torch has no such sum. Any other order can be "
            "written out in levels: `rotate(1, 1)`, `blocks(4) | sequential`, `tree((0+2)+(1+3))`; with `fma` the "
            "product goes into the addition unrounded, and `weighted` must be fp32",
        ),
        Attribute(
            name="shared",
            kind="form",
            default=ADD,
            values=(ADD, FIRST, LAST, SLOT),
            input="shared",
            says="the shared expert's output is added to the routed sum once that is rounded; goes into the same "
            "accumulator, before the rows or after them (TensorRT-LLM); or is a row of its own behind all others, with "
            "weight 1, or 1 / scale where the sum is scaled later (SGLang's and vLLM's fused shared experts)",
        ),
        site("output", "the sum is rounded to this dtype", needs="no partials", cuts=True),
        Attribute(
            name="expert",
            kind="placement",
            default=1,
            least=1,
            says="over how many ranks the experts lie (expert parallel), in runs of equal length: each rank combines "
            "the rows of its own, and an all-reduce adds up what they hand on",
        ),
        Attribute(
            name="partials",
            kind="order",
            default="rank",
            values=("rank", "first_slot"),
            needs="pieces",
            says="partial sum i is that of rank i, or, as in DeepEP's elastic kernels, that of the i-th rank met when "
            "the token's slots are gone through in turn",
        ),
        replace(
            PARTIAL,
            values=(*PARTIAL.values, *CUT_NAMES),
            says="the sum of one rank's rows is rounded to this dtype before the ranks are added up",
            measured=RANKS,
        ),
    ),
    choices_elsewhere={
        "score_site": ChoiceElsewhere(port="rows", default=experts.COMBINE),
        "scaling": ChoiceElsewhere(port="weights", default="weights"),
    },
    reads={
        "ids": ({"leaves": ("expert",)}, {"expert": (ABOVE_1,)}),
        "weights": ({"score_site": (experts.COMBINE,)},),
        "shared": ({"shared": (FIRST, LAST, SLOT)},),
    },
    tokens=Tokens(sees_rows=row_by_row),
    refusals=Refusals(values=_refuses),
    cut=Cut(pieces=_by_rank, partials=_combined, takes_partials=("rows",)),
    role=Role(family="combine"),
    integers=("ids",),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="combine:combine",
    source="transformers 5.17.0 and 5.23.0, *Experts.forward (index_add_ by expert), grouped_mm_experts_forward (sum); "
    "docs/combine.md lists the engines' variants",
)
