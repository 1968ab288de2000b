"""Toggles: every difference between two sides as a switch that can be thrown alone or left out alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from moeparity.graph.bind import BoundGraph, Place
from moeparity.graph.difference import Difference, differences
from moeparity.numerics.dtypes import MODEL
from moeparity.ops.declaration import Kind, Value

REFERENCE, CANDIDATE = "reference", "candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a recipe, or a mixture of both: a plan and the number of sequences computed together."""

    plan: BoundGraph
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle:
    """One difference between the reference and the candidate.

    `kind` is the class of the choice; `schedule` is which sequences are computed together, `dtype` the dtype a whole
    variant runs in. `nodes` are those whose numerics it changes (empty: all). `move` gives a side the other's choice.
    """

    name: str
    attribute: str
    kind: Kind | Literal["schedule", "dtype"]
    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    flag: str | None
    nodes: tuple[str, ...]
    move: Callable[[Side, Side], Side]


def toggles(reference: Side, candidate: Side) -> list[Toggle]:
    """Every difference: attributes grouped by the rule that made them, dtype and micro-batch one each."""
    attributes = differences(reference.plan, candidate.plan)
    found = [_attribute(d, reference.plan, candidate.plan) for d in attributes]
    if reference.plan.dtype != candidate.plan.dtype:
        move = _move_dtype(reference.plan, candidate.plan, {place for d in attributes for place in d.places})
        found.append(_variant("dtype", "dtype", reference.plan.dtype, candidate.plan.dtype, move))
    if reference.micro_batch != candidate.micro_batch:
        sizes = str(reference.micro_batch), str(candidate.micro_batch)
        found.append(_variant("micro_batch", "schedule", *sizes, _move_micro_batch))
    return _named_apart(found)


def mixed(base: Side, moved: Sequence[Toggle], source: Side) -> Side:
    """`base` with the choices of `moved` taken from `source`."""
    for toggle in moved:
        base = toggle.move(base, source)
    return base


def _attribute(difference: Difference, reference: BoundGraph, candidate: BoundGraph) -> Toggle:
    def move(base: Side, source: Side) -> Side:
        return replace(base, plan=base.plan.with_settings(difference.places, source.plan))

    return Toggle(
        name=difference.label,
        attribute=difference.attribute,
        kind=difference.kind,
        reference=_shown(difference.reference, reference),
        candidate=_shown(difference.candidate, candidate),
        reference_origin=difference.reference_origin,
        candidate_origin=difference.candidate_origin,
        flag=difference.flag,
        nodes=difference.nodes,
        move=move,
    )


def _shown(value: Value, plan: BoundGraph) -> str:
    return f"model ({plan.dtype})" if value == MODEL else str(value)


def _variant(
    name: str, kind: Literal["schedule", "dtype"], reference: str, candidate: str, move: Callable[[Side, Side], Side]
) -> Toggle:
    return Toggle(
        name=name,
        attribute=name,
        kind=kind,
        reference=reference,
        candidate=candidate,
        reference_origin="the recipe's reference",
        candidate_origin="the recipe's candidate",
        flag=None,
        nodes=(),
        move=move,
    )


def _move_dtype(reference: BoundGraph, candidate: BoundGraph, moved: set[Place]) -> Callable[[Side, Side], Side]:
    """The dtype, with the settings that differ but that only it switches on: those no other toggle has moved."""
    settings = reference.settings
    places = [p for p in settings if p not in moved and settings[p].value != candidate.settings[p].value]

    def move(base: Side, source: Side) -> Side:
        return replace(base, plan=base.plan.with_settings(places, source.plan).with_dtype(source.plan.dtype))

    return move


def _move_micro_batch(base: Side, source: Side) -> Side:
    return replace(base, micro_batch=source.micro_batch)


def _named_apart(found: list[Toggle]) -> list[Toggle]:
    """Toggles with unique names: two that one rule made with different values get the values in their names."""
    names = [toggle.name for toggle in found]
    return [
        replace(t, name=f"{t.name} {t.reference} -> {t.candidate}") if names.count(t.name) > 1 else t for t in found
    ]
