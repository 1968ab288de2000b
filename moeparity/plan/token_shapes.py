"""The shape of every value of a graph for one token: how many numbers, in how many heads, and what they count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from moeparity.errors import counted
from moeparity.ops.images import IMAGES
from moeparity.ops.memory import Shapes
from moeparity.plan.graph import SOURCES, Graph, Node

VALUE = "value", " for each token"
"""The `counts` of a shape where nothing more specific is known: noun and unit, as messages say them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShape:
    """The shape of a value for one token.

    numbers: how many numbers it has. heads: into how many heads they are cut, which is an axis even for one head; None
    where there is no such axis. counts: what messages call the numbers, a noun and a unit. fields: the fields of
    config.json that `numbers` follows from.
    """

    numbers: int
    heads: int | None = None
    counts: tuple[str, str] = VALUE
    fields: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The sizes of the axes after those of sequences and tokens."""
        return (self.numbers,) if self.heads is None else (self.heads, self.numbers // self.heads)

    def is_of(self, axes: Sequence[int]) -> bool:
        """Whether a token's axes in a program fit: as many numbers, and the same heads where the program has an axis of
        heads.
        """
        cut = tuple(size for size in axes if size != 1)
        flat = len(cut) < 2 or self.heads is None
        return prod(axes) == self.numbers and (flat or cut == tuple(size for size in self.axes if size != 1))

    def beside(self, axes: Sequence[int]) -> str:
        """How a program's axes differ, in words: `4 experts a token where the checkpoint says 5`."""
        fields = f" ({' and '.join(self.fields)})" if self.fields else ""
        if self.heads is None:
            return f"{_counted(prod(axes), self.counts)} where the checkpoint says {self.numbers:,}{fields}"
        own_axes = _heads(self.axes)
        if len(axes) > 1:
            return f"{_heads((prod(axes[:-1]), axes[-1]))} where the checkpoint says {own_axes}{fields}"
        return f"{_counted(prod(axes), VALUE)} where the checkpoint says {self.numbers:,}, {own_axes}{fields}"


def token_shapes(graph: Graph) -> Mapping[str, TokenShape]:
    """The shape for one token of every value, by name, including values from outside (`SOURCES`)."""
    shapes = dict.fromkeys(SOURCES, TokenShape(numbers=1))
    shapes |= {IMAGES: TokenShape(numbers=graph.sizes.get("images_width", 1))}
    for node in graph.nodes:
        inputs = [shapes[value].numbers for value in node.inputs]
        widths = node.op.memory.widths(weight_shapes(node), node.params, inputs)
        for port, (value, numbers) in enumerate(zip(node.values, widths, strict=True)):
            from_input = shapes[node.inputs[port if node.op.cut.keeps_heads else 0]]
            shapes[value] = TokenShape(
                numbers=numbers,
                heads=_cut(node, value, from_input),
                counts=_counts(node, value, graph),
                fields=_fields(node, numbers, from_input),
            )
    return shapes


def weight_shapes(node: Node) -> Shapes:
    """The shapes of a node's weights; those of experts have a leading axis of experts."""
    return {port: (ref.count, *ref.shape) if ref.each else ref.shape for port, ref in node.weights.items()}


def _cut(node: Node, value: str, from_input: TokenShape) -> int | None:
    if node.op.tokens.mixes:
        return None
    if heads := node.heads_of(value):
        return heads
    return None if node.op.cut.joins_heads else from_input.heads


def _fields(node: Node, numbers: int, from_input: TokenShape) -> tuple[str, ...]:
    weight = node.weights.get("weight")
    if weight is not None and node.op.role.gemm:
        return weight.fields[0]
    if weight is not None and "tokens" in node.inputs:
        return weight.fields[-1]
    passed_on = numbers == from_input.numbers and not (node.op.tokens.mixes or node.op.role.routes)
    return from_input.fields if passed_on else ()


def _counts(node: Node, value: str, graph: Graph) -> tuple[str, str]:
    if node.op.role.routes:
        return "expert", " a token"
    if node.op.role.gates:
        return "expert", ""
    return ("token", " in the vocabulary") if value == graph.output or node.op.role.reports else VALUE


def _counted(count: int, counts: tuple[str, str]) -> str:
    noun, unit = counts
    return f"{counted(count, noun)}{unit}"


def _heads(axes: Sequence[int]) -> str:
    return f"{counted(axes[0], 'head')} of {axes[1]:,}"
