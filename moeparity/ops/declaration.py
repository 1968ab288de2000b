"""What an op declares: its ports, weights, parameters and, above all, the numerical choices it leaves open.

A numerical choice is an `Attribute`. Its kind says what it decides: at which site a value is rounded (`rounding`), in
which order a named sum is added up (`order`), which of several algebraically equal formulas is evaluated (`form`), or
something that is no numerics at all and must not be mistaken for it (`semantics`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from moeparity.numerics.dtypes import FLOAT_NAMES, MODEL

Shapes = Mapping[str, tuple[int, ...]]
Kind = Literal["rounding", "order", "form", "semantics"]
Value = str | float
Condition = Mapping[str, tuple[Value, ...]]
"""Attribute names and the values of theirs under which something takes effect; empty: always."""


EDGE = "->"
"""Between a site and the consumer it is meant for: `output->layers[0].moe.norm`."""

EXAMPLE_ORDER = "lanes(2) | fold_hi"
"""What a message and the manual show where any summation order is allowed."""

STORED = "stored"
"""Value of a site on an edge: the consumer reads what the op stores, as every other does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One numerical choice of an op.

    `values` lists the words allowed; with `number` any finite number is allowed too, with `order` any summation order
    (`moeparity.numerics.orders`), which is kept in its canonical spelling. `when` names other attributes
    and the values of theirs under which this one takes effect. `parameter` names a parameter that must be truthy for
    the attribute to exist on a node at all. `edge` marks the last rounding of an op whose result before it is one
    value whatever it is then rounded to: a consumer may be handed another rounding of it than the one stored.
    """

    name: str
    kind: Kind
    default: Value
    says: str
    values: tuple[str, ...] = ()
    number: bool = False
    order: bool = False
    when: Condition = field(default_factory=dict)
    parameter: str | None = None
    edge: bool = False

    @property
    def expected(self) -> str:
        """The allowed values, as an error message lists them."""
        more = ["a number"] * self.number + [f"an order such as `{EXAMPLE_ORDER}`"] * self.order
        return ", ".join((*self.values, *more))


def site(name: str, says: str, *, default: str = MODEL, when: Condition | None = None, edge: bool = False) -> Attribute:
    """A rounding site: the dtype a value is rounded to there; `model` is the dtype the variant runs in."""
    values = (MODEL, *FLOAT_NAMES)
    return Attribute(name=name, kind="rounding", default=default, values=values, says=says, when=when or {}, edge=edge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant of a node, taken from the graph or from config.json: a fact of the model, not a numerical choice.

    `values` lists the words allowed, where not every value of the type is.
    """

    name: str
    type: type | tuple[type, ...]
    says: str
    required: bool = True
    default: Any = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPort:
    """A weight an op takes; `each` marks one tensor per expert, stacked along a new first axis."""

    name: str
    says: str
    required: bool = True
    each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op: what goes in and out, which choices are open, and the name of the function that computes it.

    `outputs` are the named parts of the result; a single `out` is addressed by the node's own name. `outputs_from`
    names a parameter whose keys are the parts instead. `reads` lists inputs that are read only under a condition on
    the attributes; every other input is always read. `refuses` looks at the weights' shapes, the last axis of inputs
    that a router made, and the active values and names an attribute that cannot be computed with them, and why.
    """

    name: str
    says: str
    inputs: tuple[str, ...]
    kernel: str
    source: str
    outputs: tuple[str, ...] = ("out",)
    outputs_from: str | None = None
    weights: tuple[WeightPort, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    reads: Mapping[str, Condition] = field(default_factory=dict)
    refuses: Callable[[Shapes, Mapping[str, Value]], tuple[str, str] | None] | None = None

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of that name, or None."""
        return next((a for a in self.attributes if a.name == name), None)

    def load(self) -> Callable[..., Any]:
        """The pure function that computes this op; imports torch."""
        module, function = self.kernel.split(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(f"moeparity.ops.kernels.{module}"), function)
        return loaded


def holds(condition: Condition, values: Mapping[str, Value]) -> bool:
    """True when every attribute the condition names has one of the values it asks for."""
    return all(values.get(name) in allowed for name, allowed in condition.items())
