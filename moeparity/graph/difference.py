"""The difference of two plans of one graph: the list of choices in which they differ is the search space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.graph.bind import BoundGraph, Place, Setting, attributes_of
from moeparity.graph.graph import Node
from moeparity.graph.profile import Rule
from moeparity.ops.declaration import Attribute, Kind, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One attribute that one rule set, with all its nodes: what both sides say, and where each was set.

    `places` are all settings that change together: an attribute that takes effect on one side only is folded into
    the attribute that switches it on.
    """

    label: str
    attribute: str
    kind: Kind
    reference: Value
    candidate: Value
    reference_origin: str
    candidate_origin: str
    flag: str | None
    nodes: tuple[str, ...]
    places: tuple[Place, ...]


def differences(reference: BoundGraph, candidate: BoundGraph) -> list[Difference]:
    """Every difference in attributes, grouped by the rule that made it, in execution order."""
    grouped: dict[tuple[object, ...], list[tuple[Place, Attribute]]] = {}
    for node in reference.graph.nodes:
        for attribute in _differing(node, reference, candidate):
            place = (node.name, attribute.name)
            sides = reference.settings[place], candidate.settings[place]
            grouped.setdefault((_maker(*sides), attribute.name, *(s.value for s in sides)), []).append(
                (place, attribute)
            )
    by_name = {node.name: node for node in reference.graph.nodes}
    return [_difference(members, by_name, reference, candidate) for members in grouped.values()]


def _differing(node: Node, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Attribute]:
    ref, cand = reference.active(node), candidate.active(node)
    for attribute in attributes_of(node):
        name = attribute.name
        if name in ref and name in cand and _differs(reference, candidate, (node.name, name)):
            yield attribute


def _differs(reference: BoundGraph, candidate: BoundGraph, place: Place) -> bool:
    ref, cand = reference.settings[place].value, candidate.settings[place].value
    if reference.dtype == candidate.dtype:
        return reference.resolved(ref) != candidate.resolved(cand)
    # With two dtypes `model` differs everywhere; that is one choice of the variant, not one of every node.
    return ref != cand


def _maker(reference: Setting, candidate: Setting) -> object:
    """What the difference is grouped by."""
    rule = _telling(reference, candidate)
    return None if rule is None else (rule.where, rule.label)


def _telling(reference: Setting, candidate: Setting) -> Rule | None:
    """The rule a difference is named after: the candidate's, unless only the reference singles out nodes or sets it."""
    if candidate.rule is None or (candidate.rule.op and reference.rule and reference.rule.nodes):
        return reference.rule
    return candidate.rule


def _difference(
    members: list[tuple[Place, Attribute]],
    by_name: dict[str, Node],
    reference: BoundGraph,
    candidate: BoundGraph,
) -> Difference:
    (first, attribute), places = members[0], [place for place, _ in members]
    ref, cand = reference.settings[first], candidate.settings[first]
    rule = _telling(ref, cand)
    assert rule is not None
    folded = [p for place in places for p in _folded(by_name[place[0]], place[1], reference, candidate)]
    return Difference(
        label=f"{rule.label}:{attribute.name}",
        attribute=attribute.name,
        kind=attribute.kind,
        reference=ref.value,
        candidate=cand.value,
        reference_origin=ref.origin,
        candidate_origin=cand.origin,
        flag=rule.flag,
        nodes=tuple(node for node, _ in places),
        places=(*places, *folded),
    )


def _folded(node: Node, parent: str, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Place]:
    """Settings that differ but take effect on one side at most, switched on by `parent`."""
    ref, cand = reference.active(node), candidate.active(node)
    for attribute in attributes_of(node):
        place = (node.name, attribute.name)
        one_sided = attribute.name not in ref or attribute.name not in cand
        if parent in attribute.when and one_sided and _differs(reference, candidate, place):
            yield place
