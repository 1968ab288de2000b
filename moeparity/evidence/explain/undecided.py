"""What recorded values leave undecided beside an answer: each choice in effect, held against its other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moeparity.errors import SpecError
from moeparity.evidence.explain.engines import known_choices, profiles_choices
from moeparity.evidence.explain.kernels import Kernels, UnreadError
from moeparity.evidence.explain.numbers import FIRST_NUMBERS
from moeparity.evidence.explain.plainness import written
from moeparity.evidence.explain.replaced import Choice, Choices, Replaced
from moeparity.evidence.explain.report import OpenChoice
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.vocabulary import numbers, stated_number, whole_number
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import Value
from moeparity.plan.bound import Plan
from moeparity.plan.setting import Place
from moeparity.progress import Stop

WORK: Final = 1024
"""What may be spent at a node, in calls of small kernels."""


@dataclass(slots=True)
class _Others:
    """The other values of one choice: those that give the same bits, and those that were not compared, because the work
    was spent or because a node then reads something that was not recorded.
    """

    alike: list[Value] = field(default_factory=list)
    untried: list[Value] = field(default_factory=list)
    unread: list[Value] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.alike or self.untried or self.unread)


def open_choices(kernels: Kernels, answer: Choices, samples: Sequence[Sample], stop: Stop) -> tuple[OpenChoice, ...]:
    """The choices in effect that these micro-batches do not decide, beside an answer that gives every bit.

    Each other value is tried by itself: values that are listed, in use, or set there by a shipped profile. If any
    number is allowed, also `FIRST_NUMBERS`, half of the value and its double; and the whole numbers of `WHOLE_NUMBERS`,
    until one gives the same bits. The cheap ones come first, until `WORK` is spent, or it is time to stop.
    """
    replaced = kernels.replaced
    bound = replaced.bound(answer)
    spent_before, refused = kernels.work, 0
    others: dict[Place, _Others] = {}
    for (place, value), price, listed in _trials(kernels, answer, samples, stop):
        values_at = others.setdefault(place, _Others())
        if values_at.alike and not listed:
            continue
        if stop.is_due or kernels.work - spent_before + refused + price > WORK:
            values_at.untried.append(value)
            continue
        try:
            if _gives_every_bit(kernels, _with(answer, (place, value)), samples):
                values_at.alike.append(value)
        except UnreadError:
            values_at.unread.append(value)
        except SpecError:
            # What an op refuses is no value that it could have had.
            refused += 1
    return tuple(
        OpenChoice(
            place=f"{node}:{name}",
            value="/".join(
                dict.fromkeys(written(at.resolved(node, at.settings[node, name].value)) for at in bound.distinct)
            ),
            others=tuple(map(written, values_at.alike)),
            untried=tuple(map(written, values_at.untried)),
            unread=tuple(map(written, values_at.unread)),
        )
        for (node, name), values_at in others.items()
        if values_at
    )


def _trials(
    kernels: Kernels, answer: Choices, samples: Sequence[Sample], stop: Stop
) -> list[tuple[Choice, float, bool]]:
    """The trials of other values, each with its price and with whether something lists the value. Values that only
    stand for any whole number come last; otherwise the order is by price. Once it is time to stop nothing is priced.
    """
    trials = _other_values(kernels.replaced, kernels.replaced.bound(answer))
    priced = [
        (trial, 0.0 if stop.is_due else _price(kernels, _with(answer, trial), samples), listed)
        for trial, listed in trials.items()
    ]
    return sorted(priced, key=lambda trial: (not trial[2], trial[1]))


def _other_values(replaced: Replaced, bound: Plan) -> dict[Choice, bool]:
    """Every other value that is tried in a plan, at the places where a choice is in effect. True if something lists the
    value, False if it only stands for any whole number.
    """
    reals = {place: at for place, at in numbers(replaced, bound) if place in bound.settings}
    listed = list(known_choices(replaced, bound))
    in_effect = {place for place, _ in listed}.union(reals)
    of_profiles = [choice for choices in profiles_choices(replaced) for choice in choices if choice[0] in in_effect]
    of_numbers = ((place, x) for place, at in reals.items() for x in (at / 2, at * 2, *FIRST_NUMBERS))
    others = dict.fromkeys((*of_profiles, *of_numbers), True)
    others = {choice: not whole_number(replaced, *choice) for choice in listed} | others
    return {choice: is_listed for choice, is_listed in others.items() if _differs(replaced, bound, reals, *choice)}


def _differs(replaced: Replaced, bound: Plan, reals: Mapping[Place, float], place: Place, value: Value) -> bool:
    """Whether a value is another one than the plan's in some phase; a word for the same number is not."""
    if place not in bound.settings or (place in reals and stated_number(replaced, place, value) == reals[place]):
        return False
    return any(
        bound_phase.resolved(place[0], bound_phase.settings[place].value) != value for bound_phase in bound.distinct
    )


def _with(answer: Choices, choice: Choice) -> Choices:
    return frozenset({*((place, value) for place, value in answer if place != choice[0]), choice})


def _price(kernels: Kernels, choices: Choices, samples: Sequence[Sample]) -> float:
    try:
        return max(1.0, kernels.price(choices, samples))
    except SpecError:
        return 1.0


def _gives_every_bit(kernels: Kernels, choices: Choices, samples: Sequence[Sample]) -> bool:
    """Whether choices give all recorded values. Raises SpecError where an op refuses them."""
    return all(all(map(same_bits, sample.compared, kernels.computed(choices, sample))) for sample in samples)
