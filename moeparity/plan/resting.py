"""Values that rest: set, but without effect, because another choice of the same plan leaves them nothing to decide.

Examples are `renormalize_eps` where scores are taken after the top-k, a collective where nothing is cut over ranks, and
every choice of a kernel that a user's function replaces. A value may rest in some phases of a schedule only.

A mixture of two plans may combine other choices, so that a resting value takes effect: it wakes. If a profile or recipe
set it, it is a difference of its own. If nobody set it, it is moved together with the choice that wakes it (it goes
along) and is no difference.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Final

from moeparity.ops.attribute import Attribute, Value, holds
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import edge_of
from moeparity.plan.graph import Node
from moeparity.plan.latest import Latest
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import DTYPE, FAULT, IMPL, Place

ChoiceName = tuple[str, str]
"""The name that reports give to the differences made by one rule: the rule's label and an attribute."""


def going_along(base: Plan, source: Plan) -> Mapping[Case, Sequence[Place]]:
    """By phase, the places where `base` has a resting value that nobody set, and `source` another value in effect.

    Every mixture takes the value of `source` there (a form of attention that is switched on keeps its own tiles), so it
    is no difference. Two kinds are differences all the same: choices of kind semantics, since a choice of numerics must
    not change the model as well without saying so; and places set by a rule that also makes a difference of this
    attribute at another node, or of this place in another phase, since one name in the report stands for both.
    """
    return _LATEST.of((base, source), None, lambda: _along(Pair(base, source)))


def _along(pair: Pair) -> Mapping[Case, Sequence[Place]]:
    places = {phase: [place for place in pair.unequal if pair.goes_along(place, phase)] for phase in pair.phases}
    return {phase: along for phase, along in places.items() if along}


# All mixtures of a search are made of the same two plans.
_LATEST: Final[Latest[Mapping[Case, Sequence[Place]]]] = Latest(8)


class Pair:
    """Two plans of one graph side by side, in all their phases."""

    def __init__(self, first: Plan, second: Plan) -> None:
        """Compare nothing yet: results are worked out on first use."""
        self.plans = (first, second)
        self.phases = first.phases
        self.nodes = {node.name: node for node in first.graph.nodes}
        self.replaced = (first.replaced(), second.replaced())
        plans = {phase: (first.at_phase(phase), second.at_phase(phase)) for phase in self.phases}
        distinct = {
            (id(reference), id(candidate)): InPhase(reference, candidate) for reference, candidate in plans.values()
        }
        self._in = {phase: distinct[id(reference), id(candidate)] for phase, (reference, candidate) in plans.items()}
        self._distinct = tuple(distinct.values())

    @cached_property
    def unequal(self) -> list[Place]:
        """The places at which the two have other values in some phase."""
        if len(self._distinct) == 1:
            return list(self._distinct[0].unequal)
        return [place for place in self.plans[0].written if self.differ(place)]

    def differ(self, place: Place) -> bool:
        """Whether the two have other values there in some phase."""
        return any(pair.differ(place) for pair in self._distinct)

    def phases_of(self, place: Place) -> tuple[Case, ...]:
        """The phases in which the two have other values there."""
        return tuple(phase for phase in self.phases if self._in[phase].differ(place))

    def following(self, place: Place) -> tuple[Case, ...]:
        """The phases in which both plans were given the same value there, but a border between pipeline stages makes
        their values in effect differ.
        """
        return tuple(phase for phase in self.phases if place in self._in[phase].following)

    def resting(self, place: Place, phases: Collection[Case]) -> tuple[int, ...]:
        """Which of the two (0, 1) have a resting value there, in all of these phases."""
        return tuple(index for index in (0, 1) if all(index in self._in[phase].resting(place) for phase in phases))

    def is_difference(self, place: Place) -> bool:
        """Whether the place is a difference of its own: the values differ, and matter in a plan or in some mixture."""
        return any(pair.is_difference(place, self._names) for pair in self._distinct)

    def goes_along(self, place: Place, phase: Case) -> bool:
        """Whether, in a phase, the first plan's value rests and was set by nobody, so that mixtures take the
        second's.
        """
        in_phase = self._in[phase]
        return in_phase.differ(place) and in_phase.goes_along(place, self._names) and not self.is_difference(place)

    @cached_property
    def _names(self) -> frozenset[ChoiceName]:
        """The names, by the rules of both plans, of the differences that are certain in some phase."""
        return frozenset(name for pair in self._distinct for name in pair.names)


class InPhase:
    """Two plans side by side in one phase."""

    def __init__(self, first: Plan, second: Plan) -> None:
        """Compare nothing yet: results are worked out on first use."""
        self.plans = (first, second)
        self.nodes = {node.name: node for node in first.graph.nodes}
        self.replaced = (first.replaced(), second.replaced())

    @cached_property
    def unequal(self) -> Mapping[Place, None]:
        """The places at which the two have other values, in the order of their settings."""
        theirs = self.plans[1].written
        pairs = ((place, ours, theirs[place]) for place, ours in self.plans[0].written.items())
        # Most settings are the same objects, so identity is compared first.
        unlike = (
            (place, ours.value, theirs.value)
            for place, ours, theirs in pairs
            if ours is not theirs and ours.value != theirs.value
        )
        return {place: None for place, first, second in unlike if self._resolve_unlike(place[0], first, second)}

    def _resolve_unlike(self, node: str, first: Value, second: Value) -> bool:
        """Whether two unequal values still differ once `model` stands for the dtype that the node runs in."""
        ours, theirs = self.plans
        # With two dtypes `model` differs everywhere; that is one choice of the variant, not one of every node.
        return ours.dtype_of(node) != theirs.dtype_of(node) or ours.resolved(node, first) != theirs.resolved(
            node, second
        )

    def differ(self, place: Place) -> bool:
        """Whether the two have other values there."""
        return place in self.unequal

    def resting(self, place: Place) -> tuple[int, ...]:
        """Which of the two (0, 1) have a resting value there."""
        return tuple(index for index in (0, 1) if self._rests(place, index))

    def is_difference(self, place: Place, names: Collection[ChoiceName]) -> bool:
        """Whether the place is a difference of its own; `names` are those of the differences that are certain."""
        if not self.differ(place) or self._stands_alone(place):
            return self.differ(place)
        return self.resting(place) != (0, 1) and self._is_named(place, names)

    def goes_along(self, place: Place, names: Collection[ChoiceName]) -> bool:
        """Whether the first plan's value rests and was set by nobody, and no certain difference has the place's
        name.
        """
        return self._is_nobodys(place, 0) and not self._is_named(place, names)

    @cached_property
    def names(self) -> frozenset[ChoiceName]:
        """The names, by the rules of both plans, of the certain differences (see `_stands_alone`)."""
        places = [place for place in self.unequal if self._stands_alone(place)]
        rules = ((plan.written[place].rule, place[1]) for place in places for plan in self.plans)
        return frozenset(_line(rule, name) for rule, name in rules if rule is not None)

    def _stands_alone(self, place: Place) -> bool:
        """Whether the place is certainly a difference, whatever else differs: its values are in effect or set by
        somebody on both sides, or they rest on both but may wake in a mixture.
        """
        if self.resting(place) == (0, 1):
            return self._wakes(place)
        return not any(self._is_nobodys(place, resting) for resting in (0, 1))

    def _is_named(self, place: Place, names: Collection[ChoiceName]) -> bool:
        """Whether its name in reports is also that of a certain difference, made by the same rule at another node."""
        return any(_line(plan.written[place].rule, place[1]) in names for plan in self.plans)

    def _is_nobodys(self, place: Place, resting: int) -> bool:
        """Whether the value rests in this one plan only, was set there by nobody, and is numerics (not semantics)."""
        attribute = self.nodes[place[0]].op.attribute(place[1])
        is_numerics = place[1] != FAULT and (attribute is None or attribute.kind != "semantics")
        return is_numerics and self.plans[resting].written[place].rule is None and self.resting(place) == (resting,)

    def _rests(self, place: Place, index: int) -> bool:
        node, name = place
        if name in (DTYPE, IMPL):
            return False
        if name == FAULT:
            return node in self.replaced[index]
        if node in self.replaced[index] or self._is_cut(place, index):
            return True
        return edge_of(name) is None and name not in self.plans[index].active(self.nodes[node])

    def _is_cut(self, place: Place, index: int) -> bool:
        """Whether a border between pipeline stages disables the setting given there."""
        plan = self.plans[index]
        return plan.written[place] is not plan.settings[place]

    @cached_property
    def following(self) -> frozenset[Place]:
        """The places that were given the same value, but whose values in effect differ by borders between stages."""
        if all(plan.written is plan.settings for plan in self.plans):
            return frozenset()
        cut = (place for place in self.plans[0].written if any(self._is_cut(place, index) for index in (0, 1)))
        values = ((place, [plan.settings[place].value for plan in self.plans]) for place in cut)
        return frozenset(
            place
            for place, (first, second) in values
            if place not in self.unequal and self._resolve_unlike(place[0], first, second)
        )

    def _wakes(self, place: Place) -> bool:
        """Whether a value that rests in both plans could take effect in a mixture, judged by its own conditions."""
        node = self.nodes[place[0]]
        attribute = node.op.attribute(place[1])
        if all(node.name in replaced for replaced in self.replaced):
            return False
        if attribute is None:
            return True
        return self._can_meet(attribute, node) and all(
            any(holds({name: words}, choice) for choice in self._choices(node, name))
            for name, words in attribute.when.items()
        )

    def _choices(self, node: Node, name: str) -> list[dict[str, Value]]:
        """The values in mixtures of a choice that a condition of this node names, each as {name: value}; {} where the
        choice does not exist.
        """
        if (node.name, name) not in self.plans[0].written:
            return [{key: value for key, value in plan.told_to(node).items() if key == name} for plan in self.plans]
        values = [plan.written[node.name, name].value for plan in self.plans]
        return [{name: plan.resolved(node.name, value)} for plan in self.plans for value in values]

    def _can_meet(self, attribute: Attribute, node: Node) -> bool:
        """Whether the attribute's `needs` (several pieces, partial sums) may be met in a mixture."""
        if attribute.needs == "pieces":
            return any(node.op.cut.pieces(plan.choices(node)) > 1 for plan in self.plans)
        if attribute.needs == "partials":
            return any(count > 1 for plan in self.plans for count in plan.partials.values())
        return True


def _line(rule: Rule | None, name: str) -> ChoiceName:
    """The name in reports of what a rule sets: its label and the attribute; of an overlay the label alone."""
    return ("", "") if rule is None else (rule.label, "" if rule.is_overlay else name)
