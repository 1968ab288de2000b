"""Finds the first place where B gives something that no order of A's calls gives: where differences begin, or behind
that.

If what is read differs already, A's calls are run again on what B read. So B's value is not blamed for what came
before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from moeparity.evidence.diff.compare import Comparer
from moeparity.evidence.diff.flow import DIFFERING, Knowledge, Origin, ValuePair, moment
from moeparity.evidence.diff.orders import legal_orders, orders_behind
from moeparity.evidence.diff.pass_pairs import RunPair
from moeparity.evidence.diff.report import LegalOrders, Start
from moeparity.evidence.diff.side import Side
from moeparity.evidence.diff.starts import start
from moeparity.evidence.trace.records import Call

MOST = 64
"""So many values are drawn for at most; what torch's own kernels give at once takes no draw."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Two passes as they were compared: pairs of values, what is known of them, and where differences begin."""

    run: RunPair
    values: Sequence[ValuePair]
    knowledge: Knowledge
    origins: Sequence[Origin]


@dataclass(frozen=True, slots=True)
class Walked:
    """The first place beyond A's orders, None where none of those visited is; how many were `unvisited`."""

    beyond: Start | None
    unvisited: int = 0


def first_beyond(compared: Sequence[Compared], orders_drawn: Mapping[int, LegalOrders]) -> Walked:
    """Walk through all values that differ, pass by pass. `orders_drawn`: by the ids of origins."""
    drawn = 0
    for passes in compared:
        comparer = Comparer(passes.run)
        begun = {_roots(comparer, origin.pair): origin for origin in passes.origins}
        values = list(_differing(comparer, passes.values))
        for number, pair in enumerate(values):
            origin = begun.get(_roots(comparer, pair))
            if origin is not None:
                orders, at_once = orders_drawn.get(id(origin)) or legal_orders(comparer, origin), False
            else:
                origin, handed = _behind(comparer, passes.knowledge, pair)
                orders, at_once = orders_behind(comparer, origin, handed)
            if orders.verdict == "outside":
                return Walked(start(passes.run, origin, orders))
            drawn += not at_once
            if drawn == MOST:
                return Walked(None, len(values) - number - 1)
    return Walked(None)


def _roots(comparer: Comparer, pair: ValuePair) -> tuple[int, int]:
    return comparer.a.root_of(pair.a), comparer.b.root_of(pair.b)


def _differing(comparer: Comparer, pairs: Sequence[ValuePair]) -> Iterator[ValuePair]:
    """What calls gave and differs, each value once, in the order in which A had it."""
    walked: set[tuple[int, int]] = set()
    for pair in sorted(pairs, key=lambda pair: moment(comparer.a, pair)):
        roots = _roots(comparer, pair)
        if pair.role == "output" and pair.comparison.status in DIFFERING and roots not in walked:
            walked.add(roots)
            yield pair


def _behind(comparer: Comparer, knowledge: Knowledge, pair: ValuePair) -> tuple[Origin, Mapping[int, Tensor]]:
    """The calls of either side between a value and values that have a partner; and by ids of A what B has in their
    place, if that is something else.
    """
    ops_a, read = _since(comparer.a, {*knowledge.equal[0], *knowledge.differing[0]}, pair.a)
    ops_b, _ = _since(comparer.b, {*knowledge.equal[1], *knowledge.differing[1]}, pair.b)
    others = {number: knowledge.differing[0][number] for number in read if number in knowledge.differing[0]}
    tensors = {number: comparer.b.tensor(partner) for number, partner in others.items()}
    handed = {number: tensor for number, tensor in tensors.items() if tensor is not None}
    missing = len(tensors) - len(handed)
    return Origin(pair=pair, kind="behind", ops_a=ops_a, ops_b=ops_b, unread=missing), handed


def _since(side: Side, partnered: set[int], number: int) -> tuple[tuple[Call, ...], list[int]]:
    """The calls between a value and those with a partner, in their order, and these."""
    ops: dict[int, Call] = {}
    read: dict[int, None] = {}
    waiting = [side.root_of(number)]
    while waiting:
        maker = side.producers.get(waiting.pop())
        if maker is None or maker.id in ops:
            continue
        ops[maker.id] = maker
        for value in maker.inputs.values():
            nearest = next((n for n in (value, side.root_of(value)) if n in partnered), None)
            if nearest is None:
                waiting.append(side.root_of(value))
            else:
                read[nearest] = None
    return tuple(sorted(ops.values(), key=side.returned)), list(read)
