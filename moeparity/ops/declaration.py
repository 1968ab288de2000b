"""What an op declares: its ports, weights, parameters and, above all, the numerical choices it leaves open."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from moeparity.numerics.dtypes import OF_INPUT, UNROUNDED, site_dtype
from moeparity.numerics.orders import NATIVE
from moeparity.ops.attribute import LOGISTIC, Attribute, Condition, Value
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import State

Family = Literal["norms", "router", "experts", "combine", "head", "embedding"]


def _one_piece(values: Mapping[str, Value]) -> int:
    return 1


def _never(values: Mapping[str, Value]) -> bool:
    return False


def _nothing(values: Mapping[str, Value]) -> tuple[str, ...]:
    return ()


def always(values: Mapping[str, Value]) -> bool:
    """Whatever the values in effect are."""
    return True


def in_pieces(values: Mapping[str, Value], rows: int, length: int) -> float:
    """`turns` of a kernel that computes the pieces into which its values cut it one after the other."""
    counts = (values.get(name, 1) for name in ("splits", "blocks", "tensor", "expert", "channels"))
    return max(1.0, *(count for count in counts if not isinstance(count, str)))


def _none(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A constant of a node, taken from the graph or from config.json: a fact of the model, not a numerical choice.

    `values` lists the words that are allowed, if not every value of the type is.
    """

    name: str
    type: type | tuple[type, ...]
    says: str
    required: bool = True
    default: Any = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPort:
    """A weight that an op takes.

    `stack` marks one tensor per expert: the kernel is given all of them under this name, stacked along a new first
    axis. Ports with the same `stack` are stacked one behind the other. `beside` marks a matrix of an adapter, which
    stands beside a weight and is none of the model. `initial` is what transformers initialises every
    element with; None: with random numbers.
    """

    name: str
    says: str
    required: bool = True
    stack: str | None = None
    initial: float | None = None
    beside: bool = False

    @property
    def each(self) -> bool:
        """Whether there is one tensor per expert."""
        return self.stack is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceElsewhere:
    """A choice that another op makes and that this op has to know: that of the node that made the input `port`.

    If that node does not make the choice, it passes on what it was told itself; `default` if no node made it. Nodes
    that only let a value pass (an all-reduce) are skipped.
    """

    port: str
    default: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """How an op's result at one token goes by other tokens.

    sees_rows: whether it may depend on which other tokens are computed with it, by the values in effect and the
        parameters; for an op that mixes tokens, on more than its own sequence up to the token. Where it is False it
        never does (tests/ops/test_rows.py): such an op may be run once for all steps of a schedule.
    mixes: the output at one token reads other tokens.
    history: inputs that are read at all earlier tokens of the sequence too.
    state: what a step hands to the next; such an op reads its inputs at all earlier tokens of the sequence by it. None:
        nothing.
    varlen: whether, in a pack whose sequences do not see each other, it computes each sequence by itself; by the values
        in effect.
    copies_history: whether its kernel copies the inputs in `history`, so that it may be given views; by the values in
        effect.
    joins: whether, by the values in effect, its kernel takes the rows of several `steps` at once, and gives the bits
        that each step would have by itself.
    reads_text: whether, by the values in effect, its kernel is told the tokens before each row, as `text`.
    applies: by the values in effect, the attributes by which it does what requests ask for.
    pairs: the output of a sequence reads the one beside it too, 2i + 1 beside 2i, so it is computed once for all steps.
    axis: the axis of the tokens in its outputs.
    input_axes: the axis of the tokens in inputs where it is not the one behind the batch.
    """

    sees_rows: Callable[[Mapping[str, Value], Mapping[str, Any]], bool]
    mixes: bool = False
    history: tuple[str, ...] = ()
    state: State | None = None
    varlen: Callable[[Mapping[str, Value]], bool] = _never
    copies_history: Callable[[Mapping[str, Value]], bool] = _never
    joins: Callable[[Mapping[str, Value]], bool] = _never
    reads_text: Callable[[Mapping[str, Value]], bool] = _never
    applies: Callable[[Mapping[str, Value]], tuple[str, ...]] = _nothing
    pairs: bool = False
    axis: int = 1
    input_axes: Mapping[str, int] = field(default_factory=dict)

    @property
    def by_sequence(self) -> bool:
        """Whether sequences of a step whose rows lie one behind the other are computed one by one."""
        return bool(self.history) or self.state is not None

    def reads_earlier(self, port: str) -> bool:
        """Whether the output at a token goes by this input at all earlier tokens of the sequence."""
        return self.state is not None or port in self.history


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How an op is cut into pieces and heads.

    pieces: the number of pieces into which the op is cut under given values.
    partials: the number of partial sums that its result consists of (1: it is whole), from its pieces, values,
        parameters and the same number of its inputs. A value in partial sums has one more axis, behind the batch.
    takes_partials: the inputs that may be in partial sums.
    turns: how many turns of a loop over pieces or tiles a call makes, by the values in effect, for so many rows of
        sequences of a length. Loops over experts are not counted.
    keeps_heads: each output is cut into heads as the input at the same place is.
    joins_heads: no output is cut into heads, whatever its inputs are.
    """

    pieces: Callable[[Mapping[str, Value]], int] = _one_piece
    partials: Callable[[int, Mapping[str, Value], Mapping[str, Any], Sequence[int]], int] = _none
    takes_partials: tuple[str, ...] = ()
    turns: Callable[[Mapping[str, Value], int, int], float] = in_pieces
    keeps_heads: bool = False
    joins_heads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What an op is in a model: what other code asks for, instead of the op's name.

    family: the block that its differences are bundled in; None: the graph's own block.
    gemm: every token goes through GEMMs with its weights; for experts, with those of the chosen ones.
    contracted: groups of inputs and weights that are multiplied and added up over their last axis.
    inside: attributes that say what happens inside a kernel that uses tensor cores, whose adder no document specifies.
    gates: it makes the logits that a router ranks experts by.
    routes: it chooses each token's experts.
    picks: it chooses the keys that each query attends to.
    slot_order: its values are in slot order.
    reduces: it adds up partial sums, and lets a whole value pass.
    reports: it makes the log-probabilities that a side reports.
    truncates: whether, by the values in effect, it may leave tokens of the vocabulary out, whose value is -inf then.
    """

    family: Family | None = None
    gemm: bool = False
    contracted: tuple[tuple[str, ...], ...] = ()
    inside: frozenset[str] = frozenset()
    gates: bool = False
    routes: bool = False
    picks: bool = False
    slot_order: bool = False
    reduces: bool = False
    reports: bool = False
    truncates: Callable[[Mapping[str, Value]], bool] = _never


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """What an op cannot be asked for. Each names an attribute and says why; None: it can.

    values: is given the weights' shapes, the last axis of inputs that a router made, and the values in effect, choices
        elsewhere included.
    call: the same for one kernel call: for what depends on the number of tokens or keys in a step.
    parameters: is given a node's parameters, and says why they cannot be.
    """

    values: Callable[[Shapes, Mapping[str, Value]], tuple[str, str] | None] | None = None
    call: Callable[[Call], tuple[str, str] | None] | None = None
    parameters: Callable[[Mapping[str, Any]], str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op: its inputs and outputs, the choices it leaves open, and the name of the function that computes it.

    `outputs` are the named parts of the result; a single `out` is addressed by the node's own name. `outputs_from`
    names a parameter whose keys are the parts instead. The last inputs may be left out in a graph if they are
    `optional`. `choices_elsewhere` are choices of other ops; the kernel and all conditions here see them like
    attributes. `reads` lists inputs that are read only if one of some conditions on the attributes holds; every other
    input is always read. `unhanded` are inputs that a user's function in place of this op does not get, because other
    inputs hold the same values, and `integers` those that are whole numbers. `memory` says how large its values are,
    and what its kernel needs beside them.
    """

    name: str
    says: str
    inputs: tuple[str, ...]
    kernel: str
    source: str
    tokens: Tokens
    outputs: tuple[str, ...] = ("out",)
    outputs_from: str | None = None
    weights: tuple[WeightPort, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    optional: tuple[str, ...] = ()
    choices_elsewhere: Mapping[str, ChoiceElsewhere] = field(default_factory=dict)
    reads: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)
    unhanded: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    role: Role = field(default_factory=Role)
    cut: Cut = field(default_factory=Cut)
    refusals: Refusals = field(default_factory=Refusals)
    memory: Memory = field(default_factory=Memory)

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of that name, or None."""
        return next((a for a in self.attributes if a.name == name), None)

    def settings(self, active: Mapping[str, object]) -> dict[str, Any]:
        """The active values as the kernel takes them: roundings as torch dtypes, or toward zero to one."""
        sites = {attribute.name for attribute in self.attributes if attribute.kind == "rounding"}
        return {
            name: site_dtype(str(value)) if name in sites and value not in (UNROUNDED, OF_INPUT) else value
            for name, value in active.items()
        }

    def scratch(self, call: Call) -> int:
        """Bytes that a call needs for a moment, beside inputs and outputs. What cutting the op needs is included."""
        copies = self.memory.cut_copies(call) if self.cut.pieces(call.active) > 1 else 0
        return self.memory.scratch(call) + copies

    def load(self) -> Callable[..., Any]:
        """The pure function that computes this op; imports torch."""
        module, function = self.kernel.split(":")
        loaded: Callable[..., Any] = getattr(importlib.import_module(f"moeparity.ops.kernels.{module}"), function)
        return loaded


def row_by_row(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """`sees_rows` of an op whose result at a token never depends on other tokens."""
    return False


def sees_rows_by_sigmoid(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """Whether other tokens of a step can change a token's bits, for an op where only torch's sigmoid or silu lets them:
    on CPU these give a number other bits by where it stands.
    """
    return values.get(LOGISTIC.name) == NATIVE
