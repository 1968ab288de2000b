"""The difference of two plans of one graph: the list of choices in which they differ is the search space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from moeparity.numerics.dtypes import MODEL
from moeparity.ops.declaration import EDGE, Attribute, Kind
from moeparity.plan.bind import DTYPE, IMPL, BoundGraph, Place, Setting, edges_of
from moeparity.plan.engine_profile import Rule
from moeparity.plan.graph import Node
from moeparity.plan.region import Region

_CUTTING = ("tensor", "blocks", "expert", "parallel")
"""Attributes that decide into how many pieces an op is cut, and what these are."""

Class = Kind | Literal["dtype", "implementation"]
"""The class of a choice: a kind of attribute, the dtype of a node, or a user's function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSided:
    """What a choice says on both sides, as people read it, where that was set, by what, and what would change it.

    `set_by` and `changed_by` are as users of the engines know it: a flag or the engine's default, with the profile that
    says so, and what to give the engine for another value. Empty where the recipe or nobody set the value.
    """

    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    reference_set_by: str = ""
    candidate_set_by: str = ""
    reference_changed_by: str = ""
    candidate_changed_by: str = ""


def two_sided(choice: TwoSided) -> dict[str, str]:
    """Its values, as arguments of another `TwoSided` or of a report's row that shows them."""
    return {field.name: getattr(choice, field.name) for field in fields(TwoSided)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(TwoSided):
    """One choice at one node on which both sides disagree.

    `places` are all settings that change together: an attribute that takes effect on one side only is folded into
    the choice that switches it on, and everything inside a region into the region. A site on an edge is named by its
    consumer's op: `output->rms_norm`. `rule` is the one the difference is named after (None: the variants' own dtype).
    """

    node: Node
    attribute: str
    kind: Class
    rule: Rule | None
    places: tuple[Place, ...]


def differences(reference: BoundGraph, candidate: BoundGraph) -> list[Difference]:
    """Every choice on which two plans differ, in execution order."""
    replacements = reference.replaced().keys() | candidate.replaced().keys()
    result = list(_regions(reference, candidate))
    for node in reference.graph.nodes:
        if node.name in replacements:
            continue
        at_node = [*_attributes(node, reference, candidate), *_edges(node, reference, candidate)]
        dtypes = reference.dtype_of(node.name), candidate.dtype_of(node.name)
        if dtypes[0] != dtypes[1]:
            places = {place for difference in at_node for place in difference.places}
            unequal = (p for p in _places(node, reference) if p not in places and _unequal(p, reference, candidate))
            at_node.append(_difference(node, "dtype", (reference, candidate), ((node.name, DTYPE), *unequal)))
        result += at_node
    order = {node.name: i for i, node in enumerate(reference.graph.nodes)}
    return sorted(result, key=lambda difference: order[difference.node.name])


def _places(node: Node, plan: BoundGraph) -> list[Place]:
    """Every place of a node but its dtype."""
    names = [*(a.name for a in node.attributes), IMPL]
    names += [f"{site}{EDGE}{consumer}" for site, consumer in edges_of(plan.graph, node)]
    return [(node.name, name) for name in names]


def _regions(reference: BoundGraph, candidate: BoundGraph) -> Iterator[Difference]:
    """Users' functions that one side runs and the other does not, with all that differs inside them.

    Regions of both sides that overlap are one difference, since a mixture could not run one without the other.
    """
    nodes = {node.name: node for node in reference.graph.nodes}
    sides = reference.replaced(), candidate.replaced()
    visited: set[str] = set()
    for name in nodes:
        inner = _overlap(name, sides)
        if visited.isdisjoint(inner) and inner:
            visited |= inner
            places = [p for n in nodes.values() if n.name in inner for p in [*_places(n, reference), (n.name, DTYPE)]]
            unequal = [p for p in places if _unequal(p, reference, candidate)]
            if unequal:
                # The last of the closing nodes that change speaks for all.
                main = next((p for p in reversed(unequal) if p[1] == IMPL), unequal[0])
                followers = (p for p in unequal if p != main)
                yield _difference(nodes[main[0]], "implementation", (reference, candidate), (main, *followers))


def _overlap(name: str, sides: tuple[dict[str, Region], dict[str, Region]]) -> set[str]:
    """The nodes of all regions of either side that hang together with this node's."""
    inner, queue = set[str](), [name]
    while queue:
        node = queue.pop()
        neighbours = {n for side in sides if node in side for n in side[node].nodes} - inner
        inner |= neighbours
        queue += neighbours
    return inner


def _attributes(node: Node, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Difference]:
    """Attributes that take effect on both sides and differ, each with those that only it switches on."""
    ref, cand = reference.active(node), candidate.active(node)
    for attribute in node.attributes:
        place = (node.name, attribute.name)
        if attribute.name in ref and attribute.name in cand and _differs(reference, candidate, place):
            followers = dict.fromkeys(_followers(node, attribute, reference, candidate))
            followers |= dict.fromkeys(_reductions(node, reference, candidate))
            followers |= dict.fromkeys(_going_along(node, attribute.name, reference, candidate))
            yield _difference(node, attribute.kind, (reference, candidate), (place, *followers))


def _going_along(node: Node, name: str, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Place]:
    """What differs at the nodes told of this choice, and takes effect on one side at most because of it."""
    nodes = {member.name: member for member in reference.graph.nodes}
    queue = [node]
    while queue:
        maker = queue.pop()
        for reader in (nodes[follower] for follower in reference.graph.digraph.successors(maker.name)):
            by = reader.op.told.get(name)
            if reader.op.reduces:
                queue.append(reader)
            elif by is not None and reader.inputs[reader.ports.index(by.port)] in maker.values:
                queue.append(reader)
                active = [plan.active(reader) for plan in (reference, candidate)]
                for attribute in reader.attributes:
                    one_sided = any(attribute.name not in names for names in active)
                    place = (reader.name, attribute.name)
                    if name in attribute.when and one_sided and _differs(reference, candidate, place):
                        yield place


def _reductions(node: Node, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Place]:
    """Where a node's result lies in partial sums on one side only: what differs at those who add these up."""
    if not _one_sided(node, reference, candidate):
        return
    nodes, queue = {member.name: member for member in reference.graph.nodes}, [node]
    while queue:
        followers = reference.graph.digraph.successors(queue.pop().name)
        readers = [nodes[name] for name in followers if nodes[name].op.takes_partials]
        yield from (
            (reader.name, a.name)
            for reader in readers
            for a in reader.attributes
            if a.needs == "partials" and _differs(reference, candidate, (reader.name, a.name))
        )
        queue += [reader for reader in readers if _one_sided(reader, reference, candidate)]


def _one_sided(node: Node, reference: BoundGraph, candidate: BoundGraph) -> bool:
    value = node.values[0]
    return (reference.partials[value] == 1) != (candidate.partials[value] == 1)


def _edges(node: Node, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Difference]:
    op_of = {member.name: member.op.name for member in reference.graph.nodes}
    for site, consumer in edges_of(reference.graph, node):
        place = (node.name, f"{site}{EDGE}{consumer}")
        if _differs(reference, candidate, place):
            name = f"{site}{EDGE}{op_of[consumer]}"
            yield _difference(node, "rounding", (reference, candidate), (place,), name)


def _followers(node: Node, parent: Attribute, reference: BoundGraph, candidate: BoundGraph) -> Iterator[Place]:
    """Settings that differ but take effect on one side at most, switched on by `parent`."""
    ref, cand = reference.active(node), candidate.active(node)
    for attribute in node.attributes:
        place = (node.name, attribute.name)
        one_sided = attribute.name not in ref or attribute.name not in cand
        by_parent = parent.name in attribute.when or (attribute.needs != "always" and parent.name in _CUTTING)
        if by_parent and one_sided and _differs(reference, candidate, place):
            yield place


def _differs(reference: BoundGraph, candidate: BoundGraph, place: Place) -> bool:
    ref, cand = reference.settings[place].value, candidate.settings[place].value
    node = place[0]
    if reference.dtype_of(node) == candidate.dtype_of(node):
        return reference.resolved(node, ref) != candidate.resolved(node, cand)
    # With two dtypes `model` differs everywhere; that is one choice of the variant, not one of every node.
    return ref != cand


def _unequal(place: Place, reference: BoundGraph, candidate: BoundGraph) -> bool:
    return reference.settings[place].value != candidate.settings[place].value


def _difference(
    node: Node, kind: Class, plans: tuple[BoundGraph, BoundGraph], places: tuple[Place, ...], name: str | None = None
) -> Difference:
    """The difference at the first of `places`, which the others go along with."""
    ref, cand = (plan.settings[places[0]] for plan in plans)
    variants = ("the recipe's reference", "the recipe's candidate")
    return Difference(
        node=node,
        attribute=name or places[0][1],
        kind=kind,
        reference=_words(ref, plans[0], node),
        candidate=_words(cand, plans[1], node),
        reference_origin=variants[0] if kind == "dtype" else ref.origin,
        candidate_origin=variants[1] if kind == "dtype" else cand.origin,
        reference_set_by=ref.set_by,
        candidate_set_by=cand.set_by,
        reference_changed_by=ref.changed_by,
        candidate_changed_by=cand.changed_by,
        rule=_naming_rule(ref, cand),
        places=places,
    )


def _words(setting: Setting, plan: BoundGraph, node: Node) -> str:
    if setting.value == MODEL:
        return f"model ({plan.dtype_of(node.name)})"
    return str(setting.value) or "own kernel"


def _naming_rule(reference: Setting, candidate: Setting) -> Rule | None:
    """The rule a difference is named after: the candidate's, unless only the reference's points closer or sets it."""
    if candidate.rule is None or (reference.rule and reference.rule.narrowness > candidate.rule.narrowness):
        return reference.rule
    return candidate.rule
