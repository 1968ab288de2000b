"""The known choices at the nodes that are to be explained: listed values, whole numbers, and numbers that are solved
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from moeparity.evidence.explain.replaced import ROPE, THETA, Choice, Choices, Replaced
from moeparity.numerics.dtypes import FLOAT_NAMES, MODEL
from moeparity.ops.attribute import EDGE, Attribute, Value
from moeparity.plan.bound import Plan
from moeparity.plan.setting import Place, edges_of

WHOLE_NUMBERS: Final = tuple(sorted({*range(33), *(2**i for i in range(13)), *(3 * 2**i for i in range(11))}))
"""Whole numbers that are tried where any is allowed: all up to 32, then powers of two, and three times these."""

RANKS: Final = (1, 2, 4, 8, 16)
"""Over so many ranks a node is tried."""

OUTPUT: Final = "output"
"""The site at which an op's result is rounded."""


def listed_choices(replaced: Replaced, plan: Plan) -> Iterator[Choice]:
    """Every value that is listed, in use or a whole number, if it makes a node compute something else than `plan` does
    in some phase.
    """
    every = (choice for phase_plan in plan.distinct for choice in _listed_in(replaced, phase_plan))
    yield from dict.fromkeys(every)


def _listed_in(replaced: Replaced, plan: Plan) -> Iterator[Choice]:
    nodes = {node.name: node for node in plan.graph.nodes}
    for name, attribute_name in replaced.makers:
        attribute, value = (
            nodes[name].op.attribute(attribute_name),
            plan.resolved(name, plan.settings[name, attribute_name].value),
        )
        assert attribute is not None, "a node tells of an attribute of its own"
        yield from (
            ((name, attribute_name), listed_value) for listed_value in _values(attribute) if listed_value != value
        )
    for node in replaced.searched_nodes:
        active = plan.active(node)
        for attribute in node.attributes:
            if attribute.name in active:
                values = (v for v in _values(attribute) if plan.resolved(node.name, v) != active[attribute.name])
                yield from (((node.name, attribute.name), value) for value in values)
    names = {member.name for member in replaced.nodes}
    for node in replaced.nodes:
        active = plan.active(node)
        for site, consumer in edges_of(plan.graph, node):
            place = (node.name, f"{site}{EDGE}{consumer}")
            if consumer in names:
                yield from ((place, v) for v in FLOAT_NAMES if v not in (plan.settings[place].value, active.get(site)))


def _values(attribute: Attribute) -> Iterator[Value]:
    if attribute.kind != "placement":
        yield from (value for value in attribute.values if value != MODEL)
        yield from attribute.usual
    if attribute.least is not None:
        numbers = RANKS if attribute.kind == "placement" else WHOLE_NUMBERS
        yield from (number for number in numbers if number >= attribute.least)


def numbers(replaced: Replaced, plan: Plan) -> Iterator[tuple[Place, float]]:
    """The places at which any number may stand, with the one that stands there first: attributes, then parameters."""
    places: dict[Place, float] = {}
    for phase_plan in plan.distinct:
        places = dict(_numbers_in(replaced, phase_plan)) | places
    yield from places.items()


def _numbers_in(replaced: Replaced, plan: Plan) -> Iterator[tuple[Place, float]]:
    for node in replaced.searched_nodes:
        active = plan.active(node)
        attributes = [attribute for attribute in node.attributes if attribute.number and attribute.name in active]
        for attribute in attributes:
            value = active[attribute.name]
            yield (node.name, attribute.name), float(node.params[attribute.name] if isinstance(value, str) else value)
        names = {attribute.name for attribute in node.attributes}
        for name, value in node.params.items():
            # 0 switches a part of the op off, such as a cap on logits that the model does not have.
            if isinstance(value, float) and value and name not in names:
                yield (node.name, name), value
            if name == ROPE and isinstance(value, Mapping) and THETA in value:
                yield (node.name, THETA), float(value[THETA])


def stated_number(replaced: Replaced, place: Place, value: Value) -> Value:
    """The number that a word stands for at a place, such as an eps of `config`; any other value as it is."""
    node = next(node for node in replaced.plan.graph.nodes if node.name == place[0])
    attribute = node.op.attribute(place[1])
    is_word = attribute is not None and attribute.number and isinstance(value, str)
    return float(node.params[place[1]]) if is_word else value


def whole_number(replaced: Replaced, place: Place, value: Value) -> bool:
    """Whether a value is one of the whole numbers of which any is allowed at a place."""
    node = next(node for node in replaced.plan.graph.nodes if node.name == place[0])
    attribute = node.op.attribute(place[1])
    return attribute is not None and attribute.least is not None and not isinstance(value, str)


def in_one_dtype(replaced: Replaced) -> Iterator[Choices]:
    """All values of the nodes rounded to one dtype, or all but what they give; the plan's own dtype left out."""
    sites = [
        (node.name, attribute.name)
        for node in replaced.searched_nodes
        for attribute in node.attributes
        if attribute.kind == "rounding"
    ]
    for dtype in FLOAT_NAMES:
        if dtype != replaced.plan.dtype:
            every = frozenset((place, dtype) for place in sites if dtype in _allowed(replaced, place))
            yield from (every, frozenset(choice for choice in every if choice[0][1] != OUTPUT))


def _allowed(replaced: Replaced, place: Place) -> tuple[str, ...]:
    node = next(node for node in replaced.searched_nodes if node.name == place[0])
    attribute = node.op.attribute(place[1])
    return () if attribute is None else attribute.values
