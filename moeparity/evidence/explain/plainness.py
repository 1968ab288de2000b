"""How combinations of choices are told: the plainest of several that do the same, in order, in words."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.evidence.explain.faults import is_fault, planted_at
from moeparity.evidence.explain.numbers import digits, figures
from moeparity.evidence.explain.replaced import Choice, Choices, Replaced
from moeparity.ops.attribute import Value
from moeparity.plan.graph import Node
from moeparity.plan.setting import FAULT, Place


def plainness(replaced: Replaced, choices: Choices, in_profiles: Choices) -> tuple[object, ...]:
    """A sort key that puts the plainest combination first. In this order count: fewest settings; no faults; values of
    the function's side or the op's default; values that some engine's profile has; the shortest numbers; the order of
    the list.
    """
    nodes = {node.name: node for node in replaced.named_nodes}

    def at_home(choice: Choice) -> bool:
        (node, name), value = choice
        attribute = nodes[node].op.attribute(name)
        default = None if attribute is None else attribute.default
        return value in (
            default,
            *(settings[choice[0]].value for settings in replaced.own_settings if choice[0] in settings),
        )

    def listed_as(choice: Choice) -> int:
        attribute = nodes[choice[0][0]].op.attribute(choice[0][1])
        return attribute.values.index(str(choice[1])) if attribute and choice[1] in attribute.values else 0

    strangers = [choice for choice in choices if not at_home(choice)]
    return (
        len(choices),
        sum(is_fault(place) for place, _ in choices),
        len(strangers),
        sum(choice not in in_profiles for choice in strangers),
        _length(choices),
        sum(map(listed_as, choices)),
        in_words(replaced.named_nodes, choices),
    )


def _length(choices: Choices) -> int:
    """How many digits the numbers have, those of faults too; a whole power of two that is a choice has none."""
    numbers = [value for _, value in choices if not isinstance(value, str)]
    of_faults = sum(map(str.isdigit, "".join(place[1] for place, _ in choices if is_fault(place))))
    return of_faults + sum(0 if isinstance(x, int) and x > 0 and x & (x - 1) == 0 else figures(x) for x in numbers)


def plainest_numbers(variants: Sequence[Choices]) -> Choices:
    """Of combinations that differ in numbers only, that with the shortest, and of these nearest the middle of all."""
    ends = number_ranges(variants)

    def from_middle(choices: Choices) -> float:
        return sum(abs(x - sum(ends[place]) / 2) for place, x in choices if isinstance(x, float))

    return min(variants, key=lambda c: (_length(c), from_middle(c), sorted(map(str, c))))


def number_ranges(variants: Sequence[Choices]) -> dict[Place, tuple[float, float]]:
    """From the least to the greatest number at each place."""
    numbers: dict[Place, list[float]] = {}
    for choices in variants:
        for place, value in choices:
            if not isinstance(value, str):
                numbers.setdefault(place, []).append(value)
    return {place: (min(values), max(values)) for place, values in numbers.items()}


def places(choices: Choices) -> frozenset[Place]:
    """Where choices are made."""
    return frozenset(place for place, _ in choices)


def without_numbers(choices: Choices) -> Choices:
    """The choices with every number left open."""
    return frozenset((place, value if isinstance(value, str) else "a number") for place, value in choices)


def in_order(nodes: Sequence[Node], choices: Choices) -> list[Choice]:
    """The choices in the order in which the nodes are run."""
    order = [node.name for node in nodes]
    return sorted(choices, key=lambda choice: (order.index(choice[0][0]), choice[0][1]))


def in_words(nodes: Sequence[Node], choices: Choices) -> tuple[str, ...]:
    """As `node:attribute=value`, or `node:fault=name(values)`, in the order in which the nodes are run."""
    return tuple(_in_words(place, value) for place, value in in_order(nodes, choices))


def _in_words(place: Place, value: Value) -> str:
    if is_fault(place):
        return f"{place[0]}:{FAULT}={planted_at(place, value)}"
    return f"{place[0]}:{place[1]}={written(value)}"


def written(value: Value) -> str:
    """A value as text: a number with as many digits as it has, up to seven."""
    return f"{value:.7g}" if isinstance(value, float) and digits(value) > 7 else str(value)
