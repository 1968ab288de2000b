"""The difference of two plans of one graph: the list of choices in which they differ is the search space."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from moeparity.numerics.dtypes import MODEL
from moeparity.ops.declaration import EDGE, Kind
from moeparity.plan.bind import DTYPE, IMPL, BoundGraph, Place, Setting, edges_of
from moeparity.plan.engine_profile import Rule, edge_of
from moeparity.plan.graph import Node
from moeparity.plan.region import Region
from moeparity.plan.resting import Pair
from moeparity.plan.sides import SIDES

Class = Kind | Literal["dtype", "implementation"]
"""The class of a choice: a kind of attribute, the dtype of a node, or a user's function."""

_OF_EVERY_NODE: Mapping[str, Class] = {DTYPE: "dtype", IMPL: "implementation"}


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

    `places` are all settings that change together: one, or those that say which functions run in place of nodes that
    hang together. A site on an edge is named by its consumer's op: `output->rms_norm`. `rule` is the one the difference
    is named after (None: the variants' own dtype). `resting` are the sides in which the value takes no effect, because
    of another choice there.
    """

    node: Node
    attribute: str
    kind: Class
    rule: Rule | None
    places: tuple[Place, ...]
    resting: tuple[str, ...] = ()


def differences(reference: BoundGraph, candidate: BoundGraph) -> list[Difference]:
    """Every choice on which two plans differ, in execution order.

    A value may rest: it takes no effect because of another choice, and would in a mixture. Then it is a difference like
    any other, unless it goes along with the choice that wakes it (`moeparity.plan.resting`).
    """
    pair = Pair(reference, candidate)
    result = list(_regions(pair))
    for node in reference.graph.nodes:
        result += (_difference((place,), pair) for place in _places(node, pair) if pair.is_difference(place))
    order = {node.name: i for i, node in enumerate(reference.graph.nodes)}
    return sorted(result, key=lambda difference: order[difference.node.name])


def _places(node: Node, pair: Pair) -> Iterator[Place]:
    """Every place of a node but its `impl`."""
    names = [attribute.name for attribute in node.attributes]
    names += [f"{site}{EDGE}{consumer}" for site, consumer in edges_of(pair.plans[0].graph, node)]
    yield from ((node.name, name) for name in (*names, DTYPE))


def _regions(pair: Pair) -> Iterator[Difference]:
    """Users' functions that one side runs and the other does not.

    Regions of both sides that overlap are one difference, since a mixture could not run one without the other.
    """
    visited: set[str] = set()
    for name in pair.nodes:
        inner = _overlap(name, pair.replaced)
        if visited.isdisjoint(inner) and inner:
            visited |= inner
            places = [(member, IMPL) for member in pair.nodes if member in inner]
            # The last of the closing nodes that change speaks for all.
            main = next((place for place in reversed(places) if pair.differ(place)), None)
            if main is not None:
                yield _difference((main, *(place for place in places if place != main)), pair)


def _overlap(name: str, sides: tuple[Mapping[str, Region], ...]) -> set[str]:
    """The nodes of all regions of either side that hang together with this node's."""
    inner, queue = set[str](), [name]
    while queue:
        node = queue.pop()
        neighbours = {n for side in sides if node in side for n in side[node].nodes} - inner
        inner |= neighbours
        queue += neighbours
    return inner


def _difference(places: tuple[Place, ...], pair: Pair) -> Difference:
    """The difference at the first of `places`, which the others go along with."""
    name, choice = places[0]
    node = pair.nodes[name]
    ref, cand = (plan.settings[places[0]] for plan in pair.plans)
    edge = edge_of(choice)
    attribute = node.op.attribute(edge[0] if edge else choice)
    variants = ("the recipe's reference", "the recipe's candidate")
    return Difference(
        node=node,
        attribute=choice if edge is None else f"{edge[0]}{EDGE}{pair.nodes[edge[1]].op.name}",
        kind=_OF_EVERY_NODE[choice] if attribute is None else attribute.kind,
        reference=_words(ref, pair.plans[0], node),
        candidate=_words(cand, pair.plans[1], node),
        reference_origin=variants[0] if choice == DTYPE else ref.origin,
        candidate_origin=variants[1] if choice == DTYPE else cand.origin,
        reference_set_by=ref.set_by,
        candidate_set_by=cand.set_by,
        reference_changed_by=ref.changed_by,
        candidate_changed_by=cand.changed_by,
        rule=_naming_rule(ref, cand),
        places=places,
        resting=tuple(SIDES[index] for index in pair.resting(places[0])),
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
