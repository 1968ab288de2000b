"""The difference of two plans of one graph: the list of choices in which they differ is the search space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from moeparity.numerics.dtypes import MODEL
from moeparity.ops.attribute import EDGE, AttributeKind
from moeparity.ops.placement import HANDS_ON, STAGE
from moeparity.plan.address import PHASE
from moeparity.plan.borders import cut, ends
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import edge_of
from moeparity.plan.graph import Node
from moeparity.plan.region import Region
from moeparity.plan.resting import Pair
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case, described, merged
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.setting import DTYPE, FAULT, IMPL, Place, Setting, edges_of
from moeparity.plan.sides import SIDES

Class = AttributeKind | Literal["dtype", "implementation"]
"""The class of a choice: a kind of attribute, which a fault has too; the dtype of a node, or a user's function."""

_OF_EVERY_NODE: Mapping[str, Class] = {DTYPE: "dtype", IMPL: "implementation", FAULT: "semantics"}
_NOTHING: Mapping[str, str] = {IMPL: "own kernel", FAULT: "no fault"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSided:
    """A choice's values on both sides, as printed, where each was set, and by what.

    `set_by` is what a user of the engine would know: a flag, or the engine's default, with the profile that says so.
    Empty where the recipe or nobody set the value.
    """

    reference: str
    candidate: str
    reference_origin: str
    candidate_origin: str
    reference_set_by: str = ""
    candidate_set_by: str = ""


def two_sided(choice: TwoSided) -> dict[str, str]:
    """The fields of a `TwoSided`, as arguments for another one or for a report's row."""
    return {field.name: getattr(choice, field.name) for field in fields(TwoSided)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(TwoSided):
    """One choice at one node on which both sides disagree.

    `places` are all settings that change together: usually one; several where users' functions overlap, so that only
    all of them can be switched. A site on an edge is named by its consumer's op: `output->rms_norm`. `rule` is the one
    the difference is named after (None: the variants' own dtype). `resting` are the sides on which the value takes no
    effect, because of another choice there.

    `phases` are those of a schedule in which the two sides disagree; the difference is switched in all of them at once.
    `parts`, where schedules have several phases, are the same difference in single phases: `projection@decode`.

    Where a stage of a pipeline ends, fused kernels that reach across are not run. What that changes at their nodes is a
    difference with `follows`: the one that puts the border there, whose `places` it shares.
    """

    node: Node
    attribute: str
    kind: Class
    rule: Rule | None
    places: tuple[Place, ...]
    resting: tuple[str, ...] = ()
    phases: tuple[Case, ...] = (FORWARD,)
    parts: tuple[Difference, ...] = ()
    follows: Difference | None = None


def differences(reference: Plan, candidate: Plan) -> list[Difference]:
    """Every choice on which two plans differ in some phase, in execution order.

    A value may rest: because of another choice it takes no effect on its side, but it could in a mixture of both sides.
    Then it is a difference like any other, unless it is moved together with the choice that brings it into effect
    (`moeparity.plan.resting`).
    """
    pair = Pair(reference, candidate)
    result = list(_regions(pair))
    for node in reference.graph.nodes:
        result += (_with_parts((place,), pair) for place in _places(node, pair) if pair.is_difference(place))
        following = [(place, pair.following(place)) for place in _places(node, pair)]
        result += (_following(place, phases, pair) for place, phases in following if phases)
    order = {node.name: i for i, node in enumerate(reference.graph.nodes)}
    return sorted(result, key=lambda difference: order[difference.node.name])


def _places(node: Node, pair: Pair) -> Iterator[Place]:
    """Every place of a node but its `impl`, its faults first."""
    names = [attribute.name for attribute in node.attributes]
    names += [f"{site}{EDGE}{consumer}" for site, consumer in edges_of(pair.plans[0].graph, node)]
    yield from ((node.name, name) for name in (FAULT, *names, DTYPE))


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
            # The difference is named after the last closing node that changes.
            main = next((place for place in reversed(places) if pair.differ(place)), None)
            if main is not None:
                yield _difference((main, *(p for p in places if p != main)), pair, pair.phases, shown=pair.phases)


def _overlap(name: str, sides: tuple[Mapping[str, Region], ...]) -> set[str]:
    """The nodes of all regions of either side that overlap this node's region, directly or through other regions."""
    inner, queue = set[str](), [name]
    while queue:
        node = queue.pop()
        neighbours = {n for side in sides if node in side for n in side[node].nodes} - inner
        inner |= neighbours
        queue += neighbours
    return inner


def _with_parts(places: tuple[Place, ...], pair: Pair) -> Difference:
    """The difference at a place, with its `parts` by phase where there are several; a dtype or a fault has no parts."""
    phases = pair.phases_of(places[0])
    whole = _difference(places, pair, phases, shown=pair.phases)
    if len(pair.phases) == 1 or places[0][1] in (DTYPE, FAULT):
        return whole
    return replace(whole, parts=tuple(_parts(places, pair, phases)))


def _parts(places: tuple[Place, ...], pair: Pair, phases: tuple[Case, ...]) -> Iterator[Difference]:
    """A difference's parts: one for each phase, or for each run of neighbouring cases with the same values."""
    alike: dict[tuple[str, ...], list[Case]] = {}
    for phase in phases:
        alike.setdefault(tuple(_words(places[0], plan.at_phase(phase)) for plan in pair.plans), []).append(phase)
    parts = {case: of for group in alike.values() for case, of in merged(group).items()}
    for case, of in sorted(parts.items(), key=lambda part: phases.index(part[1][0])):
        part = _difference(places, pair, of, shown=of)
        yield replace(part, attribute=f"{part.attribute}{PHASE}{case}")


def _difference(places: tuple[Place, ...], pair: Pair, phases: tuple[Case, ...], shown: tuple[Case, ...]) -> Difference:
    """The difference at the first of `places`; the other places are switched with it.

    Values are those in the phases `shown`; origins and rule are those in `phases`, in which the sides disagree.
    """
    name, choice = places[0]
    node = pair.nodes[name]
    ref, cand = ([plan.at_phase(phase).written[places[0]] for phase in phases] for plan in pair.plans)
    edge = edge_of(choice)
    attribute = node.op.attribute(edge[0] if edge else choice)
    variants = ("the recipe's reference", "the recipe's candidate")
    return Difference(
        node=node,
        attribute=choice if edge is None else f"{edge[0]}{EDGE}{pair.nodes[edge[1]].op.name}",
        kind=_OF_EVERY_NODE[choice] if attribute is None else attribute.kind,
        reference=by_phase({phase: _words(places[0], pair.plans[0].at_phase(phase)) for phase in shown}),
        candidate=by_phase({phase: _words(places[0], pair.plans[1].at_phase(phase)) for phase in shown}),
        reference_origin=variants[0] if choice == DTYPE else each_once(setting.origin for setting in ref),
        candidate_origin=variants[1] if choice == DTYPE else each_once(setting.origin for setting in cand),
        reference_set_by=each_once(setting.set_by for setting in ref),
        candidate_set_by=each_once(setting.set_by for setting in cand),
        rule=next((rule for pair in zip(ref, cand, strict=True) if (rule := _naming_rule(*pair))), None),
        places=places,
        resting=tuple(SIDES[index] for index in pair.resting(places[0], phases)),
        phases=phases,
    )


def _following(place: Place, phases: tuple[Case, ...], pair: Pair) -> Difference:
    """The difference at a place where both sides were given the same setting, and a border between pipeline stages
    disables it on one side. It is switched with the border.
    """
    causes = dict.fromkeys(cause for phase in phases for cause in _causes(place, phase, pair))
    leading = _difference(tuple(causes), pair, pair.phases_of(next(iter(causes))), shown=pair.phases)
    plans = [[plan.at_phase(phase) for phase in pair.phases] for plan in pair.plans]
    ref, cand = (
        {phase: phase_plan.settings[place] for phase, phase_plan in zip(pair.phases, of, strict=True)} for of in plans
    )
    words = [
        by_phase({phase: _read(setting, place, plan.at_phase(phase)) for phase, setting in of.items()})
        for plan, of in zip(pair.plans, (ref, cand), strict=True)
    ]
    edge = edge_of(place[1])
    return replace(
        leading,
        node=pair.nodes[place[0]],
        attribute=place[1] if edge is None else f"{edge[0]}{EDGE}{pair.nodes[edge[1]].op.name}",
        reference=words[0],
        candidate=words[1],
        reference_origin=each_once(setting.origin for setting in ref.values()),
        candidate_origin=each_once(setting.origin for setting in cand.values()),
        resting=(),
        follows=leading,
    )


def _causes(place: Place, phase: Case, pair: Pair) -> Iterator[Place]:
    """The differing choices that put a border inside the fused kernel that sets a place, or on the place's edge."""
    plans = [plan.at_phase(phase) for plan in pair.plans]
    setting: Setting | None = plans[0].written[place]
    nodes = [] if edge_of(place[1]) is None else [place[0]]
    while setting is not None:
        nodes += [node for plan in plans for node in cut(setting.chain, ends(plan.written))]
        setting = setting.beneath
    for node in dict.fromkeys(nodes):
        yield from ((node, name) for name in (STAGE, HANDS_ON) if pair.differ((node, name)))


def each_once(words: Iterable[str]) -> str:
    """Texts that are lists separated by `; `, joined into one such list with every item once."""
    return "; ".join(dict.fromkeys(part for word in words if word for part in word.split("; ")))


def by_phase(values: Mapping[Case, str]) -> str:
    """The first phase's value, then the phases with other values: `expanded (decode, verify: absorbed)`."""
    phases_of: dict[str, list[Case]] = {}
    for phase, value in values.items():
        phases_of.setdefault(value, []).append(phase)
    first, *others = phases_of
    more = "; ".join(f"{described(phases_of[value])}: {value}" for value in others)
    return f"{first} ({more})" if more else first


def _words(place: Place, plan: Plan) -> str:
    """The setting given for a place in one phase, as it is printed."""
    return _read(plan.written[place], place, plan)


def _read(setting: Setting, place: Place, plan: Plan) -> str:
    value = setting.value
    return f"model ({plan.dtype_of(place[0])})" if value == MODEL else str(value) or _NOTHING[place[1]]


def _naming_rule(reference: Setting, candidate: Setting) -> Rule | None:
    """The rule a difference is named after: the candidate's, unless it has none or the reference's is narrower."""
    if candidate.rule is None or (reference.rule and reference.rule.narrowness > candidate.rule.narrowness):
        return reference.rule
    return candidate.rule
