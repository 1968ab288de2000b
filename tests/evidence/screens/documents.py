"""Reports on evidence by hand: two traces compared, a trace explained, weights compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from moeparity.evidence.diff.report import (
    Birth,
    Coverage,
    DiffReport,
    LayerGrowth,
    LegalOrders,
    Position,
    Start,
    TraceOutline,
)
from moeparity.evidence.diff.show import document as diff_document
from moeparity.evidence.diff.show import two_digits
from moeparity.evidence.explain.report import (
    ChoiceMatch,
    ExpertTokens,
    Explained,
    Explanation,
    Extent,
    Left,
    NumberRange,
    OpenChoice,
    TokenPlace,
    Unseen,
)
from moeparity.evidence.explain.show import document as explain_document
from moeparity.evidence.weights.report import Finding, WeightsReport, WeightsSide
from moeparity.evidence.weights.show import document as weights_document
from moeparity.output.blocks import Document
from tests.evidence.explain.observed import result
from tests.evidence.explain.test_explained_profile import explanation
from tests.screens import Screens

A = TraceOutline(path="a", made_by="transformers", ranks=1, calls=111, values=222, whole=True, notes=("A note.",))
B = replace(A, path="b", ranks=2, calls=1, whole=False, notes=("A note.", "Of B alone."))
COVERAGE = Coverage(
    values=222, equal=200, padding=1, differing=10, cast=2, rounded=3, apart=1, only_a=1, only_b=2, uncovered=0,
    not_compared=(),
)  # fmt: skip
NOT_TOLD = LegalOrders(verdict="not told", reason="no call of it was recorded")
INSIDE = LegalOrders(verdict="inside", elements=99, differing=9, furthest=0.5, error_a=1.1e-3, error_b=2.2e-3)
OP = Start(
    kind="op",
    path="model.layers.0.mlp.gate",
    node="layers[0].moe.gate",
    ops_a=("aten.mm.default",),
    ops_b=("aten.mm.default",),
    slot="out",
    role="output",
    step=3,
    phase="forward",
    passes=(0, 4),
    dtypes=("bf16", "bf16"),
    shape=(32, 64),
    rows=32,
    differing=3,
    tokens=1,
    first_tokens=(5, 6, 7),
    slots=None,
    sets=None,
    furthest=0.0123,
    position=None,
    scalars=(),
    shapes=(),
    unread=0,
    stack_a=("model.py:11",),
    stack_b=("other.py:22",),
    orders=INSIDE,
    rank=0,
)
CALLS = ("aten._to_copy.default", "aten.mm.default", "aten.add.Tensor")
STARTS: Mapping[str, Start] = {
    "op, equal calls": OP,
    "op, other calls, inside one way": replace(
        OP, ops_b=CALLS, tokens=2, orders=replace(INSIDE, verdict="inside one way")
    ),
    "op, no call in A, ids": replace(
        OP, ops_a=(), sets=1, slots=2, orders=replace(INSIDE, verdict="outside", reason="so")
    ),
    "op, functions, inside": replace(OP, orders=replace(INSIDE, sums=False)),
    "op, functions, inside one way": replace(OP, orders=replace(INSIDE, sums=False, verdict="inside one way")),
    "op, functions, outside": replace(OP, orders=replace(INSIDE, sums=False, verdict="outside")),
    "op, another dtype": replace(OP, dtypes=("bf16", "fp32"), differing=0, furthest=None, orders=NOT_TOLD),
    "op, inputs that can't be compared": replace(OP, unread=2, orders=NOT_TOLD),
    "op, an input that can't be compared, other calls": replace(OP, unread=1, ops_b=CALLS, orders=NOT_TOLD),
    "module, arguments and shapes": replace(
        OP,
        kind="module",
        scalars=("eps: 1e-05 | 1e-06", "dim: 1 | 2"),
        shapes=("x [1] | [2]", "y", "z"),
        rank=1,
        orders=NOT_TOLD,
    ),
    "weight": replace(OP, kind="weight", path="", rows=0, differing=0, tokens=0, orders=NOT_TOLD),
    "weight, another dtype": replace(OP, kind="weight", dtypes=("bf16", "fp32"), orders=NOT_TOLD),
    "input": replace(OP, kind="input", orders=NOT_TOLD),
    "unseen": replace(OP, kind="unseen", orders=NOT_TOLD),
    "wiring": replace(OP, kind="wiring", orders=NOT_TOLD),
    "behind": replace(OP, kind="behind", orders=INSIDE),
    "behind, other calls": replace(OP, kind="behind", ops_b=CALLS, orders=INSIDE),
    "a prefill against a decode": replace(OP, position=Position(sequence=1, token=7, behind_cache=(False, True))),
}
LAYERS = (
    LayerGrowth(layer="model.layers.0", rows=32, differing=3, furthest=0.0123, units=None),
    LayerGrowth(layer="model.layers.1", rows=32, differing=32, furthest=0.222, units=1.5),
    LayerGrowth(layer="model.layers.2", rows=32, differing=0, furthest=None, units=None),
)
BIRTHS = (
    Birth(side="both", what="inf", path="model.layers.1", op="aten.exp", step=0),
    Birth(side="B", what="NaN", path="", op="aten.sub", step=1),
)
PARITY = DiffReport(
    a=A,
    b=replace(A, path="b", notes=()),
    status="pass",
    reason="equal bits in all 222 compared values",
    coverage=replace(COVERAGE, equal=221, differing=0, cast=0, rounded=0, apart=0),
    starts=(),
    beyond=None,
    padding_start="",
    ends="",
    other_scalars=(),
    births=(),
    growth=(),
    ranks=(),
    words=("Equal are 222 values.",),
)


def started(*starts: Start) -> DiffReport:
    return replace(PARITY, status="fail", reason="10 of 222 compared values differ", starts=starts, coverage=COVERAGE)


FULL = replace(
    started(*list(STARTS.values())[:8]),
    b=B,
    coverage=replace(COVERAGE, uncovered=5),
    beyond=STARTS["behind"],
    ends="model.layers.1",
    other_scalars=("eps: 1e-05 | 1e-06",),
    births=BIRTHS,
    growth=LAYERS,
    ranks=("rank 1 has another share",),
)
DTYPES = replace(
    started(STARTS["op, another dtype"]), status="inconclusive", reason="two dtypes", growth=LAYERS, births=BIRTHS[:1]
)
DIFFS: Screens = {
    "equal": diff_document(PARITY, "a, b"),
    "equal but in padding": diff_document(replace(PARITY, padding_start="model.embed"), "a, b"),
    "all that may be there": diff_document(FULL, "a, b"),
    "another dtype": diff_document(DTYPES, "a, b"),
    "another dtype, no whole layer": diff_document(replace(DTYPES, growth=LAYERS[2:], births=()), "a, b"),
    **{f"starts: {name}": diff_document(started(start), "a, b") for name, start in STARTS.items()},
    "in short": two_digits(FULL, "a, b"),
}

NODES = tuple(f"layers[{i}].moe.norm" for i in range(3))
TRACE = replace(
    result(),
    trace="trace",
    forwards=4,
    taken=("a causal mask", "positions from 0"),
    asked=False,
)


def plainly(node: str, **fields: object) -> Explanation:
    whole = replace(explanation(node, "bf16"), nodes=(node,), forwards=(0, 1, 2, 3))
    return replace(whole, **fields)  # type: ignore[arg-type]


def match(*choices: str, equal: float = 1.0, **fields: object) -> ChoiceMatch:
    exact = equal == 1
    return ChoiceMatch(choices=choices, equal=equal, mean_ulp=0.0, exact=exact, **fields)  # type: ignore[arg-type]


def otherwise(node: str, *matches: ChoiceMatch, **fields: object) -> Explanation:
    return plainly(node, as_started=False, as_it_is=0.5, tried=50, calls=53, matches=matches, **fields)


EPS = f"{NODES[0]}:eps"
OPEN = (
    OpenChoice(place=EPS, value="1e-05", others=("1e-06", "2e-06", "3e-06", "4e-06", "5e-06"), untried=("7", "8")),
    OpenChoice(place=f"{NODES[0]}:output", value="bf16", others=(), unread=("fp32", "fp16", "fp64", "fp8")),
)
ORDERS = Left(differing=0.111, furthest=3.0, outside=7, compared=99, draws_outside=1, beyond_orders=True)
ONE_TOKEN = Extent(
    differing=1,
    tokens=99,
    first=TokenPlace(forward=0, sequence=1, position=2),
    not_finite=1,
    experts=(ExpertTokens(expert=3, differing=1, tokens=1),),
)
TWO_EXPERTS = replace(
    ONE_TOKEN,
    differing=4,
    not_finite=2,
    first=TokenPlace(forward=2, sequence=1, position=2),
    experts=(ExpertTokens(expert=3, differing=4, tokens=6), ExpertTokens(expert=5, differing=4, tokens=4)),
)
OTHERWISE = (
    otherwise(NODES[0], match(EPS + "=1e-06"), open=OPEN),
    otherwise(
        "norm",
        match(
            "norm:square=bf16",
            "norm:eps=0.00037",
            compared=0.75,
            between=(NumberRange(place="norm:eps", least=3.6e-4, greatest=3.8e-4),),
            faults=("the norm is left out",),
        ),
        *(match(f"norm:square=fp{i}") for i in range(5)),
        forwards=(0, 2, 3),
        phases=("prefill", "decode"),
        padding=(2, 11),
    ),
)
UNEXPLAINED = (
    otherwise(NODES[1], match("a=b", equal=0.9), left=replace(ORDERS, extent=ONE_TOKEN)),
    otherwise("lm_head", left=replace(ORDERS, beyond_orders=False, furthest=math.inf, extent=TWO_EXPERTS)),
    otherwise("embed", forwards=(1,), left=Left(differing=1.0, furthest=1.0, not_drawn="it adds nothing up")),
    otherwise(NODES[2], other_shape="[4, 64] in place of [4, 32]"),
    plainly("rotary", as_started=False, other_shape="[4, 8] in place of [4, 4]"),
)
UNSEEN = (
    Unseen(node="layers[0].moe.router", reason="the trace does not show its value whole."),
    Unseen(node="layers[1].moe.router", reason="the trace does not show its value whole."),
    Unseen(node="lm_head", reason="its inputs are not shown.", forwards=(1, 2)),
)


def explained(*nodes: Explanation, **fields: object) -> Document:
    report: Explained = replace(TRACE, nodes=nodes, **fields)  # type: ignore[arg-type]
    return explain_document(report)


BETWEEN = replace(plainly("layers[0].attention.attend"), nodes=("rotary", "layers[0].attention.attend"))
EXPLAINED: Screens = {
    "all as the profile computes it": explained(*map(plainly, NODES)),
    "as the profile computes it, some left open": explained(
        BETWEEN, plainly(NODES[0], open=OPEN[:1]), plainly(NODES[1], forwards=(0,), phases=("prefill",))
    ),
    "asked for": explained(
        *(plainly(node, open=OPEN) for node in NODES[:2]), BETWEEN, asked=True, unseen=UNSEEN[:1], whole=False
    ),
    "open in each layer alike": explained(
        plainly(NODES[0], open=(OpenChoice(place=EPS, value="1", others=("2",)),)),
        plainly(NODES[1], open=(OpenChoice(place=f"{NODES[1]}:eps", value="1", others=("3",)),)),
        asked=True,
    ),
    "under other choices": explained(*OTHERWISE),
    "not explained": explained(*UNEXPLAINED, *map(plainly, NODES[:1]), unseen=UNSEEN),
    "nothing is shown": explained(forwards=1, unseen=UNSEEN[:2]),
}
SIDE_A = WeightsSide(source="checkpoint", checkpoint=True, ranks=1, missing_ranks=(), cast="", tensors=111)
SIDE_B = replace(SIDE_A, source="weights", checkpoint=False, ranks=2, cast="bf16", tensors=1)
LACKING = replace(SIDE_B, missing_ranks=(1,))
DIFFERS = Finding(tensor="norm.weight", sort="differs", side="", rows="0:8, 12", says="8 of 64 rows")
EXPERTS = tuple(
    Finding(tensor=f"layers.0.experts.{i}.down", sort="missing", side="B", rows="", says="no rank has it")
    for i in range(12)
)
CAST = replace(DIFFERS, tensor="head.weight", sort="dtype", rows="", says="bf16 | fp32")
EQUAL = WeightsReport(a=SIDE_A, b=SIDE_B, compared=111, equal=111, findings=(), constant=(), aside=())


def weighed(report: WeightsReport) -> Document:
    return weights_document(report, "checkpoint, weights")


WEIGHTS: Screens = {
    "equal": weighed(EQUAL),
    "equal, a rank without a file": weighed(replace(EQUAL, b=LACKING)),
    "one side alone": weighed(replace(EQUAL, b=None)),
    "one side alone, with findings": weighed(replace(EQUAL, b=None, findings=(replace(DIFFERS, sort="doubled"),))),
    "one that differs": weighed(replace(EQUAL, equal=110, findings=(DIFFERS,))),
    "many": weighed(
        replace(
            EQUAL,
            equal=99,
            findings=(
                *EXPERTS,
                *(replace(DIFFERS, tensor=f"layers.{i}.norm") for i in range(30)),
            ),
            constant=("bias",),
            aside=("rotary.inv_freq: a buffer",),
        )
    ),
    "not compared": weighed(replace(EQUAL, compared=110, equal=110, findings=(CAST,))),
}
DOCUMENTS: Mapping[str, Screens] = {"diff": DIFFS, "explain": EXPLAINED, "weights": WEIGHTS}
