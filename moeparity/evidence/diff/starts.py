"""The places where differences begin, as the report tells them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from moeparity.evidence.diff.align import sizes
from moeparity.evidence.diff.compare import Comparison, in_shapes
from moeparity.evidence.diff.coverage import place
from moeparity.evidence.diff.flow import Origin
from moeparity.evidence.diff.pass_pairs import RunPair
from moeparity.evidence.diff.report import Birth, LegalOrders, Position, Start
from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.records import Call

MOST = 24
"""Starts that a report lists."""
_TOKENS = 8
_FRAMES = 4


def start(pair: RunPair, origin: Origin, orders: LegalOrders) -> Start:
    """One of them, with what its calls give in other orders."""
    values, comparison = origin.pair, origin.pair.comparison
    a, b = pair.a.side, pair.b.side
    value = a.value(values.a)
    last = (origin.ops_a or (values.calls[0],))[-1], (origin.ops_b or (values.calls[1],))[-1]
    return Start(
        kind=origin.kind, node=_node(pair, values.a, values.b), path=last[0].path,
        ops_a=_names(origin.ops_a), ops_b=_names(origin.ops_b),
        slot=f"{values.slot} of {values.calls[0].name}", role=values.role, step=pair.a.step, phase=pair.a.phase,
        passes=(pair.a.index, pair.b.index),
        dtypes=(value.dtype, b.value(values.b).dtype), shape=tuple(value.shape), rows=comparison.rows,
        differing=comparison.differing, tokens=len(comparison.tokens), first_tokens=comparison.tokens[:_TOKENS],
        slots=None if comparison.ids is None else comparison.ids.slots,
        sets=None if comparison.ids is None else comparison.ids.sets, furthest=comparison.furthest,
        position=_position(pair, comparison),
        scalars=tuple(scalars(*last)), shapes=tuple(_shapes(pair, origin)),
        unread=origin.unread, stack_a=frames(a, last[0]), stack_b=frames(b, last[1]),
        orders=orders, rank=a.head.rank,
    )  # fmt: skip


def _node(pair: RunPair, a: int, b: int) -> str:
    """The graph's value that two values are, by the map of either program; empty where none says it."""
    sides = ((pair.a.side, a), (pair.b.side, b))
    return next((side.node_values[root] for side, n in sides if (root := side.root_of(n)) in side.node_values), "")


def _position(pair: RunPair, comparison: Comparison) -> Position | None:
    """Where the first token that differs stands; None where it isn't known, and where a pass has whole sequences."""
    tokens, tokens_b = pair.a.tokens, pair.b.tokens
    if tokens is None or tokens_b is None or not comparison.tokens:
        return None
    if not any(sequence.start for each in (tokens, tokens_b) for sequence in each.sequences):
        return None
    at = list(zip(tokens.positions().tolist(), tokens.numbers().tolist(), strict=True))
    places_there = [at[token] for token in comparison.tokens if at[token][1] >= 0]
    if not places_there:
        return None
    position, sequence = min(places_there)
    steps = tuple(any(sequence.start for sequence in each.sequences) for each in (tokens, tokens_b))
    return Position(sequence=sequence, token=position, behind_cache=(steps[0], steps[1]))


def _shapes(pair: RunPair, origin: Origin) -> Iterator[str]:
    """What calls of both sides that stand in one place give in other shapes, in words."""
    partners = {(call.path, call.name, call.nth): call for call in origin.ops_b}
    for ours in origin.ops_a:
        theirs = partners.get((ours.path, ours.name, ours.nth))
        for slot, number in ours.outputs.items():
            partner = None if theirs is None else theirs.outputs.get(slot)
            values = None if partner is None else (pair.a.side.value(number), pair.b.side.value(partner))
            if values is not None and values[0].shape[-1:] != values[1].shape[-1:]:
                yield f"output {slot} of {place(ours)}: {in_shapes(*values)}"


def _names(calls: tuple[Call, ...]) -> tuple[str, ...]:
    return tuple(place(call) for call in calls)


def frames(side: Side, call: Call) -> tuple[str, ...]:
    """The innermost Python frames of a call."""
    stack = None if call.stack is None else side.contents.stacks.get(call.stack)
    return () if stack is None else stack.frames[-_FRAMES:]


def scalars(call_a: Call, call_b: Call) -> Iterator[str]:
    """Arguments of two calls of one op that differ, as `name: a | b`."""
    if call_a.name != call_b.name or sizes(call_a):
        return
    for name in dict.fromkeys((*call_a.scalars, *call_b.scalars)):
        left, right = (_plain(call.scalars, name) for call in (call_a, call_b))
        if left != right:
            yield f"{name}: {left} | {right}"


def _plain(arguments: Mapping[str, Any], name: str) -> str:
    return str(arguments[name]) if name in arguments else "not given"


def births(a: Side, b: Side) -> Iterator[Birth]:
    """Calls that made NaN or infinities of finite inputs."""
    for flag, kind in (("nan_born", "NaN"), ("inf_born", "inf")):
        born = [{_key(call): call for call in side.calls if flag in call.flags} for side in (a, b)]
        for key in islice(dict.fromkeys((*born[0], *born[1])), MOST):
            side = "both" if key in born[0] and key in born[1] else "A" if key in born[0] else "B"
            call = born[0].get(key) or born[1][key]
            yield Birth(side=side, what=kind, path=call.path, op=call.name, step=call.step)  # type: ignore[arg-type]


def _key(call: Call) -> tuple[object, ...]:
    return call.step, call.phase, call.path, call.name, call.nth
