"""What an op declares: its ports, weights, parameters and, above all, the numerical choices it leaves open.

A numerical choice is an `Attribute`. Its kind says what it decides: at which site a value is rounded (`rounding`), in
which order a named sum is added up (`order`), which of several algebraically equal formulas is evaluated (`form`), or
something that is no numerics at all and must not be mistaken for it: another model (`semantics`), or which rank holds
which part of it (`placement`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from moeparity.errors import SpecError
from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import FLOAT_NAMES, MODEL, UNROUNDED, torch_dtype
from moeparity.numerics.orders import EXPLICIT, NATIVE
from moeparity.ops.measured import Measured
from moeparity.ops.memory import Call, Memory, Shapes

Family = Literal["norms", "router", "experts", "combine", "head", "embedding"]
Kind = Literal["rounding", "order", "form", "semantics", "placement"]
Needs = Literal["always", "pieces", "partials", "no partials"]
Value = str | float
Condition = Mapping[str, tuple[Value | None, ...]]
"""Attribute names and the values of theirs under which something takes effect (None: it does not exist there); empty:
always."""

ABOVE_1 = "above 1"
"""In a condition, any whole number above 1."""

OTHER_THAN_1 = "other than 1"
"""In a condition, any number but 1."""


EDGE = "->"
"""Between a site and the consumer it is meant for: `output->layers[0].moe.norm`."""

EXAMPLE_ORDER = "lanes(2) | fold_hi"
"""What a message and the manual show where any summation order is allowed."""

STORED = "stored"
"""Value of a site on an edge: the consumer reads what the op stores, as every other does."""


class RefusedError(SpecError):
    """A kernel cannot compute the shapes at hand with `attribute` as it is; the engine adds the node and the origin."""

    def __init__(self, attribute: str, reason: str) -> None:
        """`reason`: what does not fit, and what to do."""
        super().__init__(f"{attribute}: {reason}")
        self.attribute, self.reason = attribute, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One numerical choice of an op.

    `values` lists the words allowed; with `number` any finite number is allowed too, with `least` any whole number from
    there, with `order` any summation order (`moeparity.numerics.orders`), which is kept in its canonical spelling.
    `when` names other attributes and the values of theirs under which this one takes effect; `needs` whether it does
    only where the op is cut into pieces, or only where it meets (or does not meet) a value in partial sums. `parameter`
    names a parameter that must be truthy for the attribute to exist on a node at all, `given` parameters and the values
    of theirs that it must have, `weight` an optional weight, `input` an optional input. `edge` marks the last rounding
    of an op whose result before it is one value whatever it is then rounded to: a consumer may be handed another
    rounding of it than the one stored. `redrawn`: for an order, whether the floor may draw it anew, as an engine that
    adds in order of arrival would; not where another value is another library or takes another order of time.
    `sources`: of a value, how sure it is that it computes what its name says, and by which source. `same_sums`: of a
    value, another one that adds up the same products, rounded at the same places, in an order that can be written out.
    `usual`: numbers in use, where any is allowed. `measured`: how many bits it changes, by a committed table.
    """

    name: str
    kind: Kind
    default: Value
    says: str
    values: tuple[str, ...] = ()
    number: bool = False
    least: int | None = None
    order: bool = False
    needs: Needs = "always"
    when: Condition = field(default_factory=dict)
    parameter: str | None = None
    given: Condition = field(default_factory=dict)
    weight: str | None = None
    input: str | None = None
    edge: bool = False
    redrawn: bool = True
    sources: Mapping[str, Evidence] = field(default_factory=dict)
    same_sums: Mapping[str, str] = field(default_factory=dict)
    usual: tuple[float, ...] = ()
    measured: tuple[Measured, ...] = ()

    @property
    def expected(self) -> str:
        """The allowed values, as an error message lists them."""
        more = ["a number"] * self.number + [f"an order such as `{EXAMPLE_ORDER}`"] * self.order
        more += [] if self.least is None else [f"a whole number from {self.least}"]
        return ", ".join((*self.values, *more))


def site(
    name: str,
    says: str,
    *,
    default: str = MODEL,
    when: Condition | None = None,
    needs: Needs = "always",
    edge: bool = False,
    measured: tuple[Measured, ...] = (),
) -> Attribute:
    """A rounding site: the dtype a value is rounded to there; `model` is the dtype the variant runs in."""
    return Attribute(
        name=name,
        kind="rounding",
        default=default,
        values=(MODEL, *FLOAT_NAMES),
        says=says,
        when=when or {},
        needs=needs,
        edge=edge,
        measured=measured,
    )


def sum_order(
    name: str,
    says: str,
    *,
    default: str = NATIVE,
    when: Condition | None = None,
    condition: Condition | None = None,
    parameter: str | None = None,
) -> Attribute:
    """The order a sum is added in: torch's own, where that is the default, or any written out.

    The floor does not draw it anew: another order is another library.
    """
    return Attribute(
        name=name,
        kind="order",
        default=default,
        values=(NATIVE, *EXPLICIT) if default == NATIVE else EXPLICIT,
        order=True,
        redrawn=False,
        says=says,
        when=when or {},
        given=condition or {},
        parameter=parameter,
    )


LOGISTIC = Attribute(
    name="logistic",
    kind="form",
    default=NATIVE,
    values=(NATIVE, "exp", "cuda", "cuda_fast"),
    says="sigmoid, also within silu: torch's own kernel, which on CPU gives some fp32 numbers another last bit at the "
    "end of a call than within it; or 1 / (1 + exp(-x)), silu x / (1 + exp(-x)), each step rounded, with torch's exp, "
    "CUDA's, or CUDA's with -use_fast_math, whose approximate instructions are taken to be correctly rounded",
)
"""How an op computes a sigmoid."""


def _one(values: Mapping[str, Value]) -> int:
    return 1


def _never(values: Mapping[str, Value]) -> bool:
    return False


def always(values: Mapping[str, Value]) -> bool:
    """Whatever the values in effect are."""
    return True


def _none(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return 1


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
    """A weight an op takes.

    `stack` marks one tensor per expert: the kernel is handed all of them under this name, stacked along a new first
    axis, those of several ports with one name behind each other. `initial` is what transformers initialises every
    element with; None: with draws.
    """

    name: str
    says: str
    required: bool = True
    stack: str | None = None
    initial: float | None = None

    @property
    def each(self) -> bool:
        """Whether there is one tensor per expert."""
        return self.stack is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A choice that another op makes and this one must go along with: that of the node that made the input `port`.

    Where that node does not make it, it hands on what it was told itself; `default` where nobody does. Nodes that pass
    a value by (an all-reduce) are gone through.
    """

    port: str
    default: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op: what goes in and out, which choices are open, and the name of the function that computes it.

    `outputs` are the named parts of the result; a single `out` is addressed by the node's own name. `outputs_from`
    names a parameter whose keys are the parts instead. The last inputs may be left out of a graph where they are
    `optional`. `told` are the choices of other ops that the kernel and all conditions here see like an attribute's.
    `reads` lists inputs that are read only where one of some conditions on the attributes holds; every other input is
    always read. `refuses` looks at the weights' shapes, the last axis of inputs that a router made, and the active and
    told values and names an attribute that cannot be computed with them, and why.

    `pieces` is how many pieces the op is cut into under given values. `partials` is how many partial sums its result is
    left in (1: it is whole), from its pieces, values, parameters and the same of its inputs; such a value has an axis
    more, behind the batch, and only ports in `takes_partials` take one.

    What others go by, in place of its name:

    family: the block its differences are bundled in; None: the graph's own block.
    mixes_tokens: its output at one token reads other tokens.
    history: inputs that a token reads at all earlier tokens of its sequence too.
    varlen: whether, by the values in effect, it takes sequences that do not see each other in a pack one by one.
    unhanded: inputs that a user's function in its place is not given: others of its inputs are the same values.
    copies_history: whether its kernel copies those, by the values in effect, so that it may be handed views.
    token_axis: the axis of the tokens in its outputs. input_token_axes: that in inputs where it is not the one behind
        the batch.
    contracted: groups of inputs and weights that are multiplied and added up over their last axis.
    gemm: every token goes through GEMMs with its weights; of experts, with those of the chosen ones.
    gates: it makes the logits that a router ranks experts by. routes: it chooses each token's experts.
    slot_order: its values stand in slot order.
    reduces: it adds up partial sums, and lets a whole value pass by.
    reports: it makes the log-probabilities that a side reports.
    sees_rows: whether a token's result may depend on which other tokens are computed with it, by the values in effect
        and the parameters; of what mixes tokens, on more than its own sequence up to it. Never where it is False
        (tests/ops/test_rows.py): such an op may be run once for all steps of a schedule.
    joins: whether, by the values in effect, its kernel takes the rows of several `steps` at once, and gives the bits
        that each step would have by itself.
    keeps_heads: each output is cut into heads as the input in its place. joins_heads: none is, whatever its inputs are.
    integers: inputs that are whole numbers.
    misfit: looks at a node's parameters and says why they cannot be.
    memory: how large its values are, and what its kernel needs beside them.
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
    sees_rows: Callable[[Mapping[str, Value], Mapping[str, Any]], bool]
    optional: tuple[str, ...] = ()
    told: Mapping[str, Told] = field(default_factory=dict)
    reads: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    refuses: Callable[[Shapes, Mapping[str, Value]], tuple[str, str] | None] | None = None
    pieces: Callable[[Mapping[str, Value]], int] = _one
    partials: Callable[[int, Mapping[str, Value], Mapping[str, Any], Sequence[int]], int] = _none
    takes_partials: tuple[str, ...] = ()
    family: Family | None = None
    mixes_tokens: bool = False
    history: tuple[str, ...] = ()
    varlen: Callable[[Mapping[str, Value]], bool] = _never
    unhanded: tuple[str, ...] = ()
    copies_history: Callable[[Mapping[str, Value]], bool] = _never
    token_axis: int = 1
    input_token_axes: Mapping[str, int] = field(default_factory=dict)
    contracted: tuple[tuple[str, ...], ...] = ()
    gemm: bool = False
    joins: Callable[[Mapping[str, Value]], bool] = _never
    gates: bool = False
    routes: bool = False
    slot_order: bool = False
    reduces: bool = False
    reports: bool = False
    keeps_heads: bool = False
    joins_heads: bool = False
    integers: tuple[str, ...] = ()
    misfit: Callable[[Mapping[str, Any]], str | None] | None = None
    memory: Memory = field(default_factory=Memory)

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of that name, or None."""
        return next((a for a in self.attributes if a.name == name), None)

    def settings(self, active: Mapping[str, object]) -> dict[str, Any]:
        """Active values as the kernel takes them: roundings as torch's dtypes."""
        sites = {attribute.name for attribute in self.attributes if attribute.kind == "rounding"}
        return {
            name: torch_dtype(str(value)) if name in sites and value != UNROUNDED else value
            for name, value in active.items()
        }

    def scratch(self, call: Call) -> int:
        """Bytes that a call needs for a moment, beside its inputs and outputs, its cutting included."""
        copies = self.memory.cut_copies(call) if self.pieces(call.active) > 1 else 0
        return self.memory.scratch(call) + copies

    def load(self) -> Callable[..., Any]:
        """The pure function that computes this op; imports torch."""
        module, function = self.kernel.split(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(f"moeparity.ops.kernels.{module}"), function)
        return loaded


def row_by_row(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """`sees_rows` of an op that never does."""
    return False


def sees_rows_by_sigmoid(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """`sees_rows` of an op that does through torch's own sigmoid or silu alone."""
    return values[LOGISTIC.name] == NATIVE


def holds(condition: Condition, values: Mapping[str, Value]) -> bool:
    """True when every attribute the condition names has one of the values it asks for."""
    # Most attributes have no condition at all, and binding asks for every one of them.
    return not condition or all(_allows(allowed, values.get(name)) for name, allowed in condition.items())


def _allows(allowed: tuple[Value | None, ...], value: Value | None) -> bool:
    above = ABOVE_1 in allowed and isinstance(value, int) and value > 1
    return value in allowed or above or (OTHER_THAN_1 in allowed and value != 1)
