"""How sure the values behind differences are: the lowest evidence level on each side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from moeparity.plan.bound import Plan
from moeparity.plan.difference import Difference
from moeparity.plan.graph import Node
from moeparity.plan.rule import BY_RECIPE, EVIDENCE_LEVELS, UNKNOWN
from moeparity.plan.setting import DTYPE, FAULT, IMPL, Place

LOWEST_FIRST: Final = (UNKNOWN, *reversed(EVIDENCE_LEVELS))
"""Evidence levels, the least sure first. What a recipe sets is not among them: it counts as surer than any."""
NOT_KNOWN: Final = LOWEST_FIRST[:2]
"""The levels `unknown` and `opaque`: nobody vouches for the value, or it cannot be known from outside."""


def evidence(members: Sequence[Difference], reference: Plan, candidate: Plan) -> tuple[str, str]:
    """The lowest level of the values behind some differences, on the reference's and on the candidate's side.

    A value that takes no effect on a side is not counted there. Without differences (another micro-batch), and where
    no profile says anything, it is the level of a recipe's own values.
    """
    lowest, of_candidate = (_lowest(members, plan) for plan in (reference, candidate))
    return lowest, of_candidate


def in_words(levels: tuple[str, str]) -> str:
    """`verified | read`, or one word where both sides have the same level."""
    return " | ".join(dict.fromkeys(levels))


def levels(members: Iterable[Difference], plan: Plan) -> tuple[str, ...]:
    """The levels of the first place of each difference on one side, each once, in their order."""
    phased = ((member, plan.at_phase(phase)) for member in members for phase in member.phases)
    return tuple(dict.fromkeys(_level(member.places[0], in_phase) for member, in_phase in phased))


def _lowest(members: Sequence[Difference], plan: Plan) -> str:
    phased = ((member, plan.at_phase(phase)) for member in members for phase in member.phases)
    levels_there = list(dict.fromkeys(level for member, in_phase in phased for level in _rests_on(member, in_phase)))
    ranked = [level for level in levels_there if level in LOWEST_FIRST]
    return min(ranked, key=LOWEST_FIRST.index, default=levels_there[0] if levels_there else BY_RECIPE)


def _rests_on(member: Difference, plan: Plan) -> Iterator[str]:
    """The level of a difference's own value, and of the values in effect at its node that are switched with it."""
    first, *followers = member.places
    if first[1] == IMPL and plan.settings[first].rule is None:
        yield from _stated(member.node, plan)
        return
    yield _level(first, plan)
    active = plan.active(member.node)
    yield from (_level(place, plan) for place in followers if place[0] == member.node.name and place[1] in active)


def _stated(node: Node, plan: Plan) -> Iterator[str]:
    """The levels of the values in effect at a node that runs its own kernel; the other side has a user's function."""
    active = plan.active(node)
    settings = [plan.setting(node, attribute) for attribute in node.op.attributes if attribute.name in active]
    yield from [setting.level for setting in settings if setting.rule is not None] or [UNKNOWN]


def _level(place: Place, plan: Plan) -> str:
    setting = plan.settings[place]
    return BY_RECIPE if place[1] in (DTYPE, FAULT) and setting.rule is None else setting.level or UNKNOWN
