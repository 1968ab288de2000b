"""Which choices, other than a node's, would give a kernel's bits, and which the data can't tell apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from moeparity.errors import SpecError
from moeparity.numerics.orders import EXPLICIT, NATIVE, Order, OrderError, parse
from moeparity.ops.attribute import Attribute, Value
from moeparity.probe.kernels.node import Case, NodeRun, Tensors, bits_of
from moeparity.probe.replay import contracted

KINDS = ("rounding", "order", "form", SEMANTICS := "semantics")
"""Kinds of choices that are tried; the last one computes another model, so it is no legal choice."""
_VECTORS = (1, 2, 4, 8)
_FOLDS = ("fold_hi(32)", "fold_lo(32)")
_LAST = ("fold_hi", "fold_lo", "sequential")
MOST = 4
"""At most this many choices are changed together."""

Change = Mapping[str, Value]
Cases = Sequence[tuple[Case, Tensors]]
"""Cases, each with the kernel's outputs, or those of them that are asked for."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Changes that give other bits than the node's own choices on a case, and changes that give the same bits."""

    differing: tuple[Change, ...] = ()
    same: tuple[Change, ...] = ()


def in_words(change: Change) -> str:
    """`order sequential, mean divide`."""
    return ", ".join(f"{name} {value}" for name, value in change.items())


def changes(node_run: NodeRun, threads: int, orders: Sequence[str]) -> list[Change]:
    """Every other value of every choice of the node, one at a time, legal choices first.

    threads: of a block of the kernel, from which orders are made. orders: further ones, such as a probe found.
    """
    choices = node_run.choices
    listed: list[Change] = []
    for attribute in sorted(node_run.node.attributes, key=lambda a: a.kind == SEMANTICS):
        if attribute.kind not in KINDS or attribute.needs not in {"always", "no partials"}:
            continue
        values = dict.fromkeys(_values(attribute, str(choices[attribute.name]), node_run, threads, orders))
        listed += [{attribute.name: value} for value in values if value != choices[attribute.name]]
    return listed


def _values(
    attribute: Attribute, current: str, node_run: NodeRun, threads: int, orders: Sequence[str]
) -> Iterator[Value]:
    dtype = node_run.plan.dtype_of(node_run.node.name)
    if attribute.kind == "rounding":
        yield from dict.fromkeys((dtype, "fp32"))
        return
    if not attribute.order:
        yield from (value for value in attribute.values if value != NATIVE)
        return
    written = (*EXPLICIT, *orders, *_launched(threads))
    yield from written
    yield from attribute.values
    # Scores are not products, so their sums are in fp32 without contraction.
    for order in (current, *written) if attribute.name == "order" else ():
        yield from _varied(order, dtype)


def _varied(order: str, dtype: str) -> Iterator[str]:
    """An order with products contracted, and with the additions of its first level, or of every level, rounded to
    the dtype.
    """
    try:
        parsed = parse(order)
    except OrderError:
        return
    fused = contracted(parsed)
    if fused is not None:
        yield str(fused)
    for written_order in (parsed, fused):
        if written_order is not None and dtype != "fp32":
            first, *further = written_order.levels
            yield str(Order((replace(first, accumulate=dtype), *further)))
            yield str(Order(tuple(replace(level, accumulate=dtype) for level in written_order.levels)))


def _launched(threads: int) -> Iterator[str]:
    """Orders for a block of threads: each thread adds its vectors, warps fold, their sums are added."""
    for vector, fold, last in product(_VECTORS, _FOLDS, _LAST):
        yield str(parse(f"threads({threads}, {vector}) | {fold} | {last}"))


def tried(node_run: NodeRun, case: Case, listed: Sequence[Change]) -> Tried:
    """Try each change alone on one case, to see whether the data tells it from the node's own choices."""
    of_node = node_run.outputs(case, node_run.choices)
    unequal: list[Change] = []
    same: list[Change] = []
    for change in listed:
        outputs = _outputs(node_run, case, change)
        if outputs is not None:
            (same if _equal(of_node, outputs) else unequal).append(change)
    return Tried(tuple(unequal), tuple(same))


@dataclass(frozen=True, slots=True)
class Fit:
    """Changes that together give a kernel's bits on every case; `also`: others that can replace one of them."""

    change: Change
    also: tuple[Change, ...]


def fit(node_run: NodeRun, cases: Cases, listed: Sequence[Change]) -> Fit | None:
    """Changes that make all numbers equal, found one by one, each time the one that leaves fewest unequal; None without
    success.

    If no single change helps, a rounding and an order may help together, since in a narrow sum either hides the other.
    """
    change: dict[str, Value] = {}
    differing = _unequal(node_run, cases, change)
    while differing and len(change) < MOST:
        further = [change_here for change_here in listed if change_here.keys().isdisjoint(change)]
        best, count = _best(node_run, cases, change, further, differing)
        if count == differing:
            best, count = _best(node_run, cases, change, _pairs(node_run, further), differing)
        if count == differing:
            return None
        change, differing = {**change, **best}, count
    if differing:
        return None
    others = [
        change_here
        for change_here in listed
        if change_here.keys() <= change.keys() and not change_here.items() <= change.items()
    ]
    return Fit(
        change,
        tuple(change_here for change_here in others if not _unequal(node_run, cases, {**change, **change_here}, 1)),
    )


def _best(
    node_run: NodeRun, cases: Cases, change: Change, further: Sequence[Change], differing: int
) -> tuple[Change, int]:
    """The first of the further changes that leaves fewest numbers unequal, and how many; no change and `differing` if
    none helps.
    """
    best: Change = {}
    for addition in further:
        count = _unequal(node_run, cases, {**change, **addition}, differing)
        if count < differing:
            best, differing = addition, count
        if not differing:
            break
    return best, differing


def _pairs(node_run: NodeRun, listed: Sequence[Change]) -> list[Change]:
    """Each change of a rounding combined with each change of an order."""
    kinds = {a.name: a.kind for a in node_run.node.attributes}
    of = {
        kind: [change for change in listed if {kinds[name] for name in change} == {kind}]
        for kind in ("rounding", "order")
    }
    return [{**rounding, **order} for rounding, order in product(of["rounding"], of["order"])]


def _unequal(node_run: NodeRun, cases: Cases, change: Change, most: int = sys.maxsize) -> int:
    """How many numbers of all cases differ from the kernel's under a change; `most` if there are at least this many, or
    if the op refuses the change.
    """
    count = 0
    for case, out in cases:
        outputs = _outputs(node_run, case, change)
        if outputs is None:
            return most
        count += sum(int((bits_of(x) != bits_of(outputs[name])).sum()) for name, x in out.items())
        if count >= most:
            return most
    return count


def _outputs(node_run: NodeRun, case: Case, change: Change) -> Tensors | None:
    """The node's outputs under a change; None if its op refuses that."""
    try:
        return node_run.outputs(case, {**node_run.choices, **change})
    except (SpecError, ValueError):  # an order that this sum cannot have: fma where nothing is multiplied
        return None


def _equal(out: Tensors, outputs: Tensors) -> bool:
    return all(bool((bits_of(out[name]) == bits_of(x)).all()) for name, x in outputs.items())
