"""Which summation order each output element of a reduction over ranks gets. No torch here.

A ring is not one order: it cuts the output into parts and adds the ranks of each part in another order. An `OrderMap`
is such a cut (`Partition`), an order of ranks for each part (`RankOrder`), and what is rounded where. A `Selection`
picks one of several collectives by message size, tokens, number of ranks and architecture, as an engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from moeparity.numerics.orders import AnyTree, Level, Order

Accumulate = Literal["io", "fp32"]
Zeros = Literal["keep", "negative_to_positive", "negative_words_to_positive"]

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank hands to a reduction, flattened: `elements` of `itemsize` bytes, on each of `ranks` ranks.

    width: elements of one token, needed by rules about tokens. arch: such as `sm90`.
    """

    elements: int
    itemsize: int
    ranks: int
    width: int | None = None
    arch: str | None = None

    @property
    def bytes(self) -> int:
        """Size of the message of one rank."""
        return self.elements * self.itemsize

    @property
    def tokens(self) -> int:
        """The number of tokens, of `width` elements each; ValueError if no width was given or it does not divide the
        elements.
        """
        if self.width is None or self.elements % self.width:
            raise ValueError(f"{self.elements} elements are no whole number of tokens of width {self.width}")
        return self.elements // self.width


@dataclass(frozen=True, slots=True)
class Part:
    """Output elements [start, stop), added up in one order: that of chunk or destination `owner` on `channel`."""

    start: int
    stop: int
    owner: int = 0
    channel: int = 0


class Partition(Protocol):
    """How a library cuts a message into parts: consecutive, without gaps, none of them empty."""

    def parts(self, message: Message) -> tuple[Part, ...]:
        """All parts of `message`; together they cover elements 0 to `message.elements`."""


class RankOrder(Protocol):
    """The order in which the ranks of a part are added."""

    def tree(self, part: Part, ranks: int) -> AnyTree:
        """The summation tree over ranks 0 to `ranks` - 1."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The message in one part: every element gets the same order."""

    def __str__(self) -> str:
        return "whole"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part, or none for an empty message."""
        return tiles(message.elements, message.elements)


@dataclass(frozen=True, slots=True)
class PerDestination:
    """A reduce-scatter's message: one block of equal size for each rank, cut further by `inner`.

    inner None: a block is one part, owned by its destination. Otherwise owners are those of `inner`.
    """

    inner: Partition | None = None

    def __str__(self) -> str:
        return "per_destination" if self.inner is None else f"per_destination({self.inner})"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """The parts; ValueError if the elements do not divide by the ranks."""
        block, remainder = divmod(message.elements, message.ranks)
        if remainder:
            raise ValueError(f"{message.elements} elements cannot be scattered evenly over {message.ranks} ranks")
        if self.inner is None:
            return tiles(message.elements, block)
        inner = self.inner.parts(Message(block, message.itemsize, message.ranks, message.width, message.arch))
        return tuple(
            Part(rank * block + part.start, rank * block + part.stop, part.owner, part.channel)
            for rank in range(message.ranks)
            for part in inner
        )


def tiles(elements: int, size: int) -> tuple[Part, ...]:
    """Parts of `size` elements, the last one what is left, owned by 0, 1, 2, and so on."""
    if elements == 0:
        return ()
    return tuple(
        Part(start, min(start + size, elements), owner) for owner, start in enumerate(range(0, elements, size))
    )


@dataclass(frozen=True, slots=True)
class Rotation:
    """Ranks along a ring, added left to right: position owner + `start` first, then `step` further each time.

    rings: the rank at each position, for each channel (the last ring serves all further channels); without rings,
    position p is rank p. Printed as `rotate(start, step)`, counted from the owner.
    """

    start: int
    step: int
    rings: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        rings = f", rings {list(map(list, self.rings))}" if self.rings else ""
        return f"rotate({self.start:+d}, {self.step:+d}{rings})"

    def tree(self, part: Part, ranks: int) -> AnyTree:
        """The tree; ValueError if a ring is not a permutation of the ranks that starts with rank 0."""
        ring = self.rings[min(part.channel, len(self.rings) - 1)] if self.rings else tuple(range(ranks))
        if sorted(ring) != list(range(ranks)) or ring[0] != 0:
            raise ValueError(f"a ring lists ranks 0 to {ranks - 1} once each, rank 0 first; got {ring}")
        return chain(ring[(part.owner + self.start + self.step * i) % ranks] for i in range(ranks))


@dataclass(frozen=True, slots=True)
class EveryPart:
    """One tree for all parts, which `build` makes from the number of ranks; printed as `name`."""

    name: str
    build: Callable[[int], AnyTree]

    def __str__(self) -> str:
        return self.name

    def tree(self, part: Part, ranks: int) -> AnyTree:  # noqa: ARG002
        """The same for each part."""
        return self.build(ranks)


def chain(leaves: Iterable[AnyTree]) -> AnyTree:
    """Leaves or trees added left to right; a single one is itself."""
    nodes = tuple(leaves)
    return nodes[0] if len(nodes) == 1 else nodes


ASCENDING = EveryPart("ascending", lambda ranks: chain(range(ranks)))


@dataclass(frozen=True, slots=True)
class OrderMap:
    """Partition, order of ranks in each part, and the rounding of every step.

    accumulate: every addition is rounded to the message's dtype (`io`) or to fp32. output: the sum is rounded to the
    message's dtype, or handed on in fp32. from_zero: each sum starts from +0 instead of the first operand. inputs:
    which zeros change sign before the sum (`negative_words_to_positive`: only 32-bit words 0x80000000, that is, in
    16-bit dtypes a -0 at an odd index after a +0).
    """

    partition: Partition
    order: RankOrder
    accumulate: Accumulate
    output: Accumulate = "io"
    from_zero: bool = False
    inputs: Zeros = "keep"

    def __str__(self) -> str:
        words = [f"{self.partition} | {self.order} | each add rounded to {self.accumulate}"]
        words += ["result in fp32"] if self.output == "fp32" else []
        words += ["from +0"] if self.from_zero else []
        words += [f"inputs {self.inputs}"] if self.inputs != "keep" else []
        return ", ".join(words)

    def trees(self, message: Message) -> tuple[tuple[Part, AnyTree], ...]:
        """Every part of `message` with its tree over ranks; ValueError if the rules do not fit the message."""
        return tuple((part, self.order.tree(part, message.ranks)) for part in self.partition.parts(message))

    def explain(self, message: Message) -> str:
        """One line for each part, with its order as a profile writes it: `[0, 4)  tree(2+1+0)`."""
        rows = [
            (f"[{part.start}, {part.stop})", str(Order((Level(name="tree", explicit=tree),))))
            for part, tree in self.trees(message)
        ]
        width = max((len(span) for span, _ in rows), default=0)
        return "\n".join(f"{span:{width}}  {order}" for span, order in rows)


@dataclass(frozen=True, slots=True)
class When:
    """The condition of a row; every given bound must hold. Bytes, elements and tokens are those of one rank's message,
    `total_bytes_up_to` bounds bytes times ranks.
    """

    ranks: tuple[int, ...] | None = None
    arch: tuple[str, ...] | None = None
    bytes_below: int = UNBOUNDED
    total_bytes_up_to: int = UNBOUNDED
    tokens_up_to: int = UNBOUNDED
    fewer_elements_than_ranks: bool = False

    def __str__(self) -> str:
        words = [f"ranks in {list(self.ranks)}"] if self.ranks is not None else []
        words += [f"arch in {list(self.arch)}"] if self.arch is not None else []
        words += [f"bytes < {self.bytes_below}"] if self.bytes_below != UNBOUNDED else []
        words += [f"bytes * ranks <= {self.total_bytes_up_to}"] if self.total_bytes_up_to != UNBOUNDED else []
        words += [f"tokens <= {self.tokens_up_to}"] if self.tokens_up_to != UNBOUNDED else []
        words += ["elements < ranks"] if self.fewer_elements_than_ranks else []
        return " and ".join(words) or "otherwise"

    def holds(self, message: Message) -> bool:
        """Whether all bounds hold; ValueError if one is about tokens and `message` has no width."""
        return (
            (self.ranks is None or message.ranks in self.ranks)
            and (self.arch is None or message.arch in self.arch)
            and message.bytes < self.bytes_below
            and (not self.fewer_elements_than_ranks or message.elements < message.ranks)
            and message.bytes * message.ranks <= self.total_bytes_up_to
            and (self.tokens_up_to == UNBOUNDED or message.tokens <= self.tokens_up_to)
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """A table: from the top, the first row whose condition holds names the collective that runs."""

    name: str
    rows: tuple[tuple[When, str], ...]

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {when}: {use}" for when, use in self.rows)])

    def choose(self, message: Message) -> str:
        """The name of the collective for `message`; ValueError if no row holds."""
        for when, use in self.rows:
            if when.holds(message):
                return use
        raise ValueError(f"{self.name} does not take {message}: no row of its table holds\n{self}")
