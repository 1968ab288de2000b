"""Which flags would give one side the values that the other has: found by binding its profile with each flag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from moeparity.ops.attribute import EDGE, Value
from moeparity.ops.requests import APPLIED, IGNORED
from moeparity.plan.bound import Plan
from moeparity.plan.difference import Difference
from moeparity.plan.flags import FlaggedPlans, KnownFlag, site_of
from moeparity.plan.latest import Latest
from moeparity.plan.rule import EVIDENCE_LEVELS
from moeparity.plan.schedule.cases import Case, contains
from moeparity.plan.setting import Place, Setting
from moeparity.plan.sides import Side

_NAMED: Final = 2
"""How many of the other choices that an offered flag changes are named; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A flag that gives one side the other side's values at all places of a toggle.

    `request` is what requests must ask for in addition; empty where the flag is enough. `also` are the other choices,
    `op:attribute`, that the flag changes to values the other side does not have.
    """

    flag: str
    request: str
    also: tuple[str, ...]

    def __str__(self) -> str:
        """The flag, and what else it does."""
        more = f" and {len(self.also) - _NAMED} more" if len(self.also) > _NAMED else ""
        also = f"also changes {', '.join(self.also[:_NAMED])}{more}" if self.also else ""
        notes = ", ".join(filter(None, (self.request, also)))
        return f"{self.flag} ({notes})" if notes else self.flag


def offers(side: Side, wanted: Plan, members: Sequence[Difference]) -> tuple[Offer, ...]:
    """The flags with which a side would have the values of the plan `wanted` at every place of some differences.

    Those that change the fewest other choices come first. A flag whose profile has no evidence for such a value is not
    offered.
    """
    flagged = side.flagged
    if flagged is None or not members:
        return ()
    names = {site_of(name) for member in members for _, name in member.places}
    candidates = [flag for flag in flagged.flags if names <= flag.sets]
    offered = [offer for flag in candidates if (offer := _offer(flag, flagged, side.plan, wanted, members)) is not None]
    return tuple(sorted(offered, key=lambda offer: len(offer.also))) or _asked_otherwise(candidates, wanted, members)


def _asked_otherwise(flags: Sequence[KnownFlag], wanted: Plan, members: Sequence[Difference]) -> tuple[Offer, ...]:
    """What requests would ask for, where each chooses the number and its engine has been given the flag already."""
    place, phase = members[0].places[0], members[0].phases[0]
    request = (members[0].node.op.name, place[1])
    if any(member.places != members[0].places for member in members) or all(request not in f.requested for f in flags):
        return ()
    value = wanted.resolved(place[0], wanted.at_phase(phase).written[place].value)
    return (Offer(flag=_requests(place[1], value), request="", also=()),)


def _offer(
    flag: KnownFlag, flagged: FlaggedPlans, plan: Plan, wanted: Plan, members: Sequence[Difference]
) -> Offer | None:
    place, phase = members[0].places[0], members[0].phases[0]
    is_requested = (members[0].node.op.name, place[1]) in flag.requested
    # A flag that only lets requests choose a number is no answer for another attribute: it is offered as other flags.
    if flag.requested and not is_requested:
        return None
    value = wanted.at_phase(phase).written[place].value if is_requested else None
    with_flag = flagged.plan(flag, None if value is None else (place[1], value))
    if with_flag is None or not all(gives(with_flag, wanted, member) for member in members):
        return None
    request = "" if value is None else _requests(place[1], value)
    return Offer(flag=flag.text, request=request, also=tuple(_changed_beside(with_flag, plan, wanted)))


def _requests(attribute: str, value: Value) -> str:
    """What requests have to be like for this value."""
    words = {APPLIED: f"requests with {attribute}", IGNORED: f"requests without {attribute}"}
    return words.get(str(value), f"requests at {attribute} {value}")


def gives(with_flag: Plan, wanted: Plan, member: Difference) -> bool:
    """Whether the plan with a flag has the wanted values at all places of a difference, each with evidence for its
    engine.
    """
    for phase in member.phases:
        for case in _cases_within(with_flag, phase):
            ours, theirs = with_flag.at_phase(case), wanted.at_phase(phase)
            for place in member.places:
                setting = ours.written.get(place)
                if setting is None or setting.level not in EVIDENCE_LEVELS:
                    return False
                if _value(ours, place, setting) != _value(theirs, place, theirs.written[place]):
                    return False
    return True


def _cases_within(plan: Plan, phase: Case) -> Iterator[Case]:
    """The cases of a plan within a case of another plan: the rules of a flag may cut phases into smaller cases."""
    return (case for case in plan.phases if case == phase or contains(phase, case))


def _value(plan: Plan, place: Place, setting: Setting) -> Value:
    return plan.resolved(place[0], setting.value)


def _changed_beside(with_flag: Plan, plan: Plan, wanted: Plan) -> Iterator[str]:
    """The choices in effect with a flag whose values are neither those without it nor those of the other side."""
    changes = _LATEST.of((with_flag, plan), None, lambda: tuple(_changes(with_flag, plan)))
    changed = dict[str, None]()
    for change in changes:
        theirs = wanted.at_phase(change.phase)
        if change.value != _value(theirs, change.place, theirs.written[change.place]):
            changed[change.choice] = None
    yield from changed


class _Change(NamedTuple):
    """A choice, `op:attribute`, at a place in a phase, and the value that a flag gives it there."""

    choice: str
    phase: Case
    place: Place
    value: Value


# The same for every difference and every other side, so kept.
_LATEST: Final[Latest[tuple[_Change, ...]]] = Latest(64)


def _changes(with_flag: Plan, plan: Plan) -> Iterator[_Change]:
    """Every value in effect with a flag that is another one without it."""
    nodes = {node.name: node for node in plan.graph.nodes}
    for phase in plan.phases:
        before = plan.at_phase(phase)
        for case in _cases_within(with_flag, phase):
            after = with_flag.at_phase(case)
            for place, setting in after.written.items():
                value = _value(after, place, setting)
                if setting is before.written[place] or value == _value(before, place, before.written[place]):
                    continue
                node, name = nodes[place[0]], place[1]
                if EDGE in name or name in after.active(node):
                    choice = f"{node.op.name}:{site_of(name)}"
                    yield _Change(choice=choice, phase=phase, place=place, value=value)
