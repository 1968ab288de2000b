"""Reports by hand for the sections that say where it starts, how it grows, and which tokens it moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from moeparity.bisection.divergence.data import KnownDifference, NodeError, Root, TokenPlace
from moeparity.bisection.flips.data import FlipDetail, LayerFlips, Origin, RoutingFlips
from moeparity.bisection.graph.data import GraphNode, GraphSegment, NodeChoice, OpGraph, Read, SideChoice
from moeparity.bisection.nonfinite.data import FirstNonfinite
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.replay.data import Replay, ReplayedToggle, Rung
from moeparity.bisection.replay.show import replay_reading
from moeparity.bisection.report import Report
from moeparity.bisection.shares.data import Attribution, ShareRow, Shares
from moeparity.bisection.trace.data import GraftedRoutes, Segment, Traced
from moeparity.bisection.trace.show import trace_reading
from tests.bisection.flips.test_show import DETAIL, FLIPS, MARGINS
from tests.bisection.replay.test_show import RUNGS
from tests.bisection.reports import REPORT, fill, grown
from tests.bisection.test_screen import CHOICE, FAIL, INERT, MASKED, METRICS, ROOTS, SIZE, TOGGLE

ROOT = replace(
    ROOTS[0],
    pads=11,
    choices=(
        replace(CHOICE, reference_set_by='experts_implementation="eager" (hf-eager)'),
        *(replace(CHOICE, attribute=name) for name in ("a", "b", "c", "d", "e")),
    ),
)
BATCH = replace(ROOTS[0], choices=(replace(CHOICE, attribute="micro_batch", reference="8", candidate="4"),))
PADDING = replace(ROOTS[1], pads=ROOTS[1].tokens)
BIRTH = FirstNonfinite(
    side="candidate",
    node="layers[1].moe.experts",
    op="experts",
    nan=1,
    infinite=0,
    sequences=1,
    tokens=1,
    sequence=6,
    position=3,
    expert=11,
    padding=False,
)


def rooted(*roots: Root, unequal: int = 200) -> Report:
    return replace(FAIL, roots=roots, metrics=replace(METRICS, unequal_tokens=unequal))


BROKEN = replace(SIZE, relative_l2=math.inf, nonfinite_candidate=3)
GROWTH = {
    "two layers": FAIL,
    "many layers, a jump": grown([1e-6] * 30 + [1e-4] * 31 + [1e-4], {30: 1}),
    "values that are not finite": replace(
        FAIL,
        growth=(
            replace(FAIL.growth[0], carried=BROKEN, largest_local=math.inf),
            replace(FAIL.growth[0], name="layers[1]", node="layers[1].moe.residual"),
        ),
    ),
    "no layer that is finite": replace(FAIL, growth=(replace(FAIL.growth[0], carried=BROKEN),)),
    "no root, nothing to show": rooted(),
}


def segment(name: str, kl: float, part: float, *bounds: float, roots: int = 0) -> Segment:
    low, high = bounds or (-math.inf, math.inf)
    return Segment(name=name, kl=kl, made=part, low=low, high=high, roots=roots)


SEGMENTS = (
    segment("before", 0.0, 0.0, 0.0, 0.0),
    segment("layers[0]", 1.1e-3, 1.1e-3, 9e-4, 1.3e-3, roots=1),
    segment("layers[1] to layers[2]", 1.2e-3, 1e-4),
    segment("after", 1e-3, -2e-4, -3e-4, -1e-4, roots=2),
)
ROUTES = (GraftedRoutes(forced="ids", kl=4e-4), GraftedRoutes(forced="ids+weights+order", kl=5e-4))
TRACED = Traced(
    folder="trace",
    program="transformers",
    forwards="1 forward of 3 x 111",
    others=0,
    tokens=333,
    real_tokens=333,
    together=True,
    whole=True,
    logits=True,
    shown=44,
    nodes=55,
    weights=66,
    other_weights=(),
    unknown="",
    segments=SEGMENTS,
    routes=ROUTES,
    reading=(),
)
PARTIAL = replace(
    TRACED,
    others=2,
    tokens=222,
    together=False,
    whole=False,
    logits=False,
    other_weights=tuple(f"layers.{i}.gate.weight" for i in range(6)),
    unknown="layers[*].moe.experts, rotary",
)
KNOWN = tuple(
    KnownDifference(node=f"layers[{i}].moe.norm", local=1e-3 * (i + 1), baseline=1.1e-3 * (i + 1)) for i in range(6)
)
UNSHOWN = tuple(replace(root, unshown=("layers[0].moe.router", "layers[0].moe.experts")) for root in ROOTS[:1])


def traced(
    of: Traced,
    roots: Iterable[Root],
    steps: str | None,
    *,
    subtracted: tuple[KnownDifference, ...] = (),
    unequal: int = 7,
    grafts: bool = True,
) -> Report:
    places = tuple(roots)
    reading = trace_reading(of, places, subtracted, replace(METRICS, unequal_tokens=unequal), steps, grafts=grafts)
    return replace(REPORT, trace=replace(of, reading=tuple(reading)))


STARTS = {
    "nowhere": rooted(),
    "one root with pads and several choices": rooted(ROOT),
    "several roots of a trace, by size": replace(
        rooted(*ROOTS, replace(ROOT, local=math.inf, places=(TokenPlace(sequence=2, position=5, request="7-a"),))),
        trace=TRACED,
    ),
    "many roots, equal values in another dtype": rooted(replace(BATCH, same_values=True), *ROOTS[1:]),
    "padding alone, which no scored token shows": rooted(PADDING, unequal=0),
    "padding alone, which reaches a scored token": rooted(PADDING, unequal=1),
    "padding at one of two": rooted(PADDING, ROOT, unequal=7),
}
TRACES = {
    "whole, the reference gives the recorded bits at every node": traced(
        replace(TRACED, segments=()), (), None, unequal=0
    ),
    "whole, with grafts": traced(TRACED, ROOTS[:1], None),
    "beside a good run": traced(TRACED, ROOTS[:1], None, subtracted=KNOWN),
    "beside a good run that differs as much everywhere": traced(TRACED, (), None, subtracted=KNOWN[:1]),
    "in part, other forwards than the reference's": traced(PARTIAL, (*UNSHOWN, *ROOTS[1:]), "111 forwards of 1 x 3"),
    "one of each, no schedule for its forwards, grafts off": traced(
        replace(PARTIAL, others=1, other_weights=("norm.weight",), weights=1, segments=(), routes=(), shown=1),
        ROOTS[:1],
        None,
        grafts=False,
    ),
    "no scored token shows it": traced(replace(TRACED, segments=()), ROOTS[:2], None, unequal=0),
    "no part is surely above nothing": traced(
        replace(TRACED, segments=(segment("before", 1.0, 0.0), segment("after", 1.0, 0.001)), routes=()),
        ROOTS[:1],
        None,
    ),
}


def flipped(detail: FlipDetail | None) -> Report:
    return replace(FAIL, flips=replace(FLIPS, detail=detail), per_token=TOKENS)


COSTLY = (
    replace(DETAIL, cost=replace(DETAIL.cost, unflipped=DETAIL.cost.flipped, kl_share=0.75)) if DETAIL.cost else DETAIL
)
UNKNOWN = Origin(root_gate=1, root_router=0, after_own=0, after_others=0, before_any=0, unknown=2)
MANY_LAYERS = tuple(
    LayerFlips(layer=i, tokens=40, set_flips=i % 3, slot_flips=i % 5, slots_replaced=i % 4, zero_overlap=0)
    for i in range(60)
)
TOKENS = PerToken(
    input_ids=np.arange(6).reshape(2, 3),
    real=np.ones((2, 3), bool),
    scored=np.array([[False, True, True]] * 2),
    k3=np.array([[0, 1e-6, 0.5], [0, 1e-3, 1e-2]], np.float32),
    kl=np.zeros((2, 3), np.float32),
    delta=np.zeros((2, 3), np.float32),
    reference_logprob=np.array([[0, -1, -2], [0, -3, -4]], np.float32),
    candidate_logprob=np.array([[0, -1.5, -2], [0, -3, -4.25]], np.float32),
    layers=np.array([1]),
    flips=np.ones((1, 2, 3), np.uint8),
    margin=np.full((1, 2, 3), 4.0, np.float32),
    perturbation=np.full((1, 2, 3), 8.0, np.float32),
    flipped=np.array([[0, 0, 1]]),
    experts=np.array([[[1, 2], [1, 3]]]),
)
FLIP_SCREENS = {
    "origin, margins and cost": flipped(DETAIL),
    "what is unknown, and a token that flips nowhere": flipped(
        replace(COSTLY, origin=UNKNOWN, margins=replace(MARGINS, median_margin=None))
    ),
    "tables alone": flipped(None),
    "many layers": replace(FAIL, flips=RoutingFlips(layers=MANY_LAYERS, tokens=40, tokens_any_layer=20)),
    "no router": replace(FAIL, flips=None),
}
TOGGLES = (
    ReplayedToggle(name="op combine:accumulate", alone=2e-4, alone_forced=1e-4),
    ReplayedToggle(name="refused", alone=None, alone_forced=None),
)


def rung(forced: str, kl: float, low: float, high: float, *, exact: bool = False) -> Rung:
    return Rung(
        forced=forced,
        kl=kl,
        kl_change_low=low,
        kl_change_high=high,
        k3=kl,
        mean_abs_delta=0.0,
        max_abs_delta=0.0,
        set_flips=0.0,
        slot_flips=0.0,
        exact=exact,
    )


def replayed(*rungs: Rung, flips: bool = True, toggles: tuple[ReplayedToggle, ...] = ()) -> Report:
    return replace(
        REPORT, replay=Replay(rungs=rungs, toggles=toggles, reading=tuple(replay_reading(rungs, flips=flips)))
    )


NATURAL = rung("natural", 4e-4, 0.0, 0.0)
LADDERS = {
    "flips carry most": replayed(
        NATURAL,
        rung("ids", 5.6e-5, -4e-4, -3e-4),
        rung("ids+weights", 2e-5, -5e-5, -1e-5),
        rung("ids+weights+order", 2e-5, 0.0, 0.0),
    ),
    "a ladder and toggles; flips carry most": replayed(
        RUNGS[0], replace(RUNGS[1], kl_change_low=-4e-4, kl_change_high=-2e-4), *RUNGS[2:], toggles=TOGGLES
    ),
    "a part, a rise, what is not shown": replayed(
        NATURAL,
        rung("ids", 3e-4, -2e-4, -5e-5),
        rung("ids+weights", 3.2e-4, 1e-5, 3e-5),
        rung("ids+weights+order", 3e-4, -4e-5, 1e-6),
    ),
    "no flips, all of it by the routers": replayed(
        NATURAL,
        rung("ids", 4e-4, 0.0, 0.0),
        rung("ids+weights", 0.0, -5e-4, -3e-4),
        rung("ids+weights+order", 0.0, 0.0, 0.0, exact=True),
        flips=False,
    ),
    "equal bits": replayed(replace(NATURAL, kl=0.0, exact=True)),
    "no KL": replayed(replace(NATURAL, kl=0.0)),
    "a KL that is no number": replayed(replace(NATURAL, kl=math.nan), rung("ids", math.nan, -math.inf, math.inf)),
    "no router": replace(REPORT, replay=Replay(rungs=(), toggles=(), reading=("There is no router.",))),
}


def choice(name: str, candidate: str) -> NodeChoice:
    reference, other_side = (SideChoice(value=v, evidence="read", origin="a.yaml:1") for v in ("bf16", candidate))
    return NodeChoice(name=name, reference=reference, candidate=other_side)


def node(name: str, op: str, *choices: NodeChoice, toggles: tuple[str, ...] = (), source: str = "") -> GraphNode:
    reads = (Read(source=source, part="", next_layer=False, unread=False),) if source else ()
    return GraphNode(role=name, op=op, reads=reads, choices=choices, toggles=toggles)


GRAPH = OpGraph(
    segments=(
        GraphSegment(title="before", layers=(), nodes=(node("embed", "embed"),)),
        GraphSegment(
            title="layers[0:2]",
            layers=(0, 1),
            nodes=(
                node("layers[*].moe.gate", "gate", choice("output", "bf16"), source="embed"),
                node(
                    "layers[*].moe.combine",
                    "combine",
                    choice("leaves", "bf16"),
                    choice("accumulate", "fp32"),
                    toggles=(TOGGLE.name, INERT.name, "op untried:form"),
                    source="layers[*].moe.gate",
                ),
            ),
        ),
        GraphSegment(
            title="after", layers=(), nodes=(node("lm_head", "lm_head", choice("x", "y"), toggles=(MASKED.name,)),)
        ),
    )
)
ERRORS = tuple(
    NodeError(node=f"layers[{i}].moe.combine", op="combine", layer=i, carried=size, local=SIZE)
    for i, size in enumerate((SIZE, BROKEN))
)
BLAMED = fill(Attribution, shares=fill(Shares, rows=(fill(ShareRow, name=MASKED.name, role="culprit"),)))
GRAPHS = {
    "what starts, what acts, what is masked": replace(FAIL, graph=GRAPH, nodes=(*FAIL.nodes, *ERRORS)),
    "a culprit, and a second root": replace(
        FAIL, graph=GRAPH, attribution=BLAMED, roots=(*ROOTS[:1], replace(ROOTS[0], node="layers[0].moe.gate"))
    ),
}
LONG = 60_000
MANY = replace(
    TOKENS,
    real=np.ones((3, LONG), bool),
    scored=np.ones((3, LONG), bool),
    k3=np.ones((3, LONG), np.float32),
    kl=np.ones((3, LONG), np.float32),
    delta=np.ones((3, LONG), np.float32),
    flips=np.zeros((1, 3, LONG), np.uint8),
    margin=np.ones((1, 3, LONG), np.float32),
    perturbation=np.ones((1, 3, LONG), np.float32),
)
TOKEN_SCREENS = {
    "two sequences": replace(FAIL, per_token=TOKENS),
    "equal bits": replace(FAIL, roots=(), per_token=replace(TOKENS, k3=0 * TOKENS.k3)),
    "no tokens": replace(FAIL, per_token=None),
}
REPORTS: Mapping[str, Mapping[str, Report]] = {
    "divergence.starts": STARTS,
    "divergence.growth": GROWTH,
    "trace.show": TRACES,
    "flips.show": FLIP_SCREENS,
    "replay.show": LADDERS,
    "per_token.show_log_probs": TOKEN_SCREENS,
    "per_token.show": {**TOKEN_SCREENS, "more tokens than a page holds": replace(FAIL, per_token=MANY)},
    "graph.show": GRAPHS,
}
