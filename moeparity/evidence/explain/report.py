"""What is said of choices that were tried: what they give against what was to be explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeparity.output.json import to_json
from moeparity.output.words import percent

SCHEMA: Final = "moeparity.explain/1"
UNSHOWN: Final = "the trace does not show its value whole."


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRange:
    """Which numbers were seen to do the same at a `node:attribute`: all bits equal at both ends."""

    place: str
    least: float
    greatest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceMatch:
    """Known choices, and how near their values come to what was to be explained, on the inputs that were met.

    choices: as `node:attribute=value`; for a number of the model, such as a scale, `node:parameter=value`. equal:
    fraction of elements with equal values; exact: every bit and the dtype are equal. compared: the fraction of the
    elements that were looked at. mean_ulp: mean distance in ulps of the coarser dtype; infinite if a value is not
    finite. between: if an exact choice is a number, the range of numbers that are as exact. faults: for choices that
    are faults, what they mean, as sentences say it.
    """

    choices: tuple[str, ...]
    equal: float
    mean_ulp: float
    exact: bool
    compared: float = 1.0
    between: tuple[NumberRange, ...] = ()
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " with ".join(self.choices)

    @property
    def part_compared(self) -> str:
        """What is said behind `all bits equal`; empty if every element was looked at."""
        return "" if self.compared == 1 else f" in the {percent(self.compared)} of elements that were compared"


def is_near(equal: float, as_it_is: float) -> bool:
    """Whether choices that make the fraction `equal` of the elements equal are worth naming. `as_it_is` is the fraction
    that is equal without them. They are if they make at least half of the others equal; choices that make fewer are
    only the first among strangers.
    """
    return equal > as_it_is and 2 * (1 - equal) <= 1 - as_it_is


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChoice:
    """A choice that these values do not decide. `value` is the one in effect; the values of several phases are joined
    by `/`.

    others: values each of which gives the same bits here by itself; if any whole number is allowed, only the first that
    does is looked for. untried: values that were not compared, since the work for that was spent. unread: values that
    were not compared, since with them a node reads something that was not recorded.
    """

    place: str
    value: str
    others: tuple[str, ...]
    untried: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """Where a token stands: forward, sequence and position, each counted from 0. `request`: in a server's forward, what
    the server calls the sequence, whose tokens `position` counts; `sequence` is 0 there.
    """

    forward: int
    sequence: int
    position: int
    request: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTokens:
    """An expert that all `differing` tokens went to, beside how many tokens did."""

    expert: int
    differing: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The tokens whose bits differ: how many there are, of how many, and the first of them.

    not_finite: elements that are NaN or infinite although the computed ones are finite. experts: the one expert, or
    two, to which each of these tokens went and no other token did; empty if there are none, or if the experts are not
    known.
    """

    differing: int
    tokens: int
    first: TokenPlace
    not_finite: int
    experts: tuple[ExpertTokens, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the nearest choices leave of a node's values.

    differing: fraction of the elements whose bits differ; furthest: by how many ulps at most, infinite if a value is
    not finite. outside: how many of `compared` elements lie outside the band that other legal orders of the same sums
    give; `draws_outside`: how many a legal order has there at most. Both are None if no orders can be drawn;
    `not_drawn` says why. beyond_orders: whether no legal order explains what is left, in all or at one token. extent:
    which tokens differ; None if shapes differ.
    """

    differing: float
    furthest: float
    outside: int | None = None
    compared: int = 0
    draws_outside: int = 0
    beyond_orders: bool = False
    not_drawn: str = ""
    extent: Extent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOrder:
    """An order that no file lists and that gives every bit of all rows, with the place of its sum.

    fitted: the rows on which it was sought. others: all further ones, on which it was then judged. deciding: the sums
    in these others of which the choices beside it give other bits by themselves: one for each element, or one for a row
    whose elements share it, as in a norm.
    """

    place: str
    order: str
    fitted: int
    others: int
    deciding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderSearch:
    """What came of searching the algebra of orders at a node that no listed choice explains.

    seconds: how long it took. is_whole: whether all orders that it knows were tried; if not, its share of the budget
    was spent before. found: what explains the node. unsure: what gives all bits too, but with so few sums that decide
    that a wrong value may have them by chance; these explain nothing.
    """

    tried: int
    seconds: float
    is_whole: bool
    found: tuple[FoundOrder, ...] = ()
    unsure: tuple[FoundOrder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Which choices give the recorded bits of a node, beside those of a start profile.

    nodes: all nodes that were computed anew, because values between them were not recorded. forwards: the forwards of
    the trace, from 0, that are explained so, in these `phases`. A node whose forwards were not all computed alike has
    an explanation for each part. elements: elements of tokens that are no padding. as_it_is: fraction of elements that
    are equal under the start profile. local_error: the error there, relative to the recorded values' root mean square.
    extent: which tokens have other bits there; None if none has, or if shapes differ. tried: how many combinations of
    other choices were run, in `calls` kernel calls. matches: combinations that give every bit on all micro-batches, the
    plainest first; empty if the start profile's own choices do; if nothing does, those that come nearest, the best
    first. open: choices that these values do not decide beside the first match. padding: at how many tokens of padding,
    and of how many, the bits differ; these decide nothing. other_shape: in words, what a token has in place of the
    shape that the checkpoint says; such values are compared with nothing; empty if shapes are equal. searched: false if
    the search was stopped before it came to its own end and had found nothing. orders: what a search for orders that no
    file lists came to; None if there was none.
    """

    node: str
    op: str
    nodes: tuple[str, ...]
    forwards: tuple[int, ...]
    phases: tuple[str, ...]
    elements: int
    as_it_is: float
    as_started: bool
    tried: int
    calls: int
    matches: tuple[ChoiceMatch, ...] = ()
    open: tuple[OpenChoice, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    padding: tuple[int, int] = (0, 0)
    left: Left | None = None
    other_shape: str = ""
    searched: bool = True
    local_error: float = 0.0
    extent: Extent | None = None
    orders: OrderSearch | None = None

    @property
    def explained(self) -> bool:
        """Whether some choices give every bit."""
        return self.as_started or (bool(self.matches) and self.matches[0].exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A node of which a trace does not show enough, and what is missing. `forwards`: where, if not in all."""

    node: str
    reason: str
    forwards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What `explain` says of a trace: of each node, which numerics give the values that the program recorded.

    profile, dtype: the numerics from which the search started. taken: what had to be assumed of the program to explain
    attention and the rotation. whole: whether the recording ran to the program's end. asked: whether the user named
    nodes; if not, all that the trace shows are explained. budget: seconds that the search for orders that no file lists
    might take; None: there was no such search.
    """

    trace: str
    program: str
    checkpoint: str
    profile: str
    dtype: str
    forwards: int
    taken: tuple[str, ...]
    whole: bool
    asked: bool
    nodes: tuple[Explanation, ...]
    unseen: tuple[Unseen, ...]
    budget: float | None = None

    @property
    def exit_code(self) -> int:
        """0 where every node is explained; 1 where nothing that was tried explains one; 3 where one was not searched to
        the end, or was asked for and is not shown.
        """
        if any(node.searched and not node.explained for node in self.nodes):
            return 1
        return 3 if not self.nodes or self.stopped or (self.asked and self.unseen) else 0

    @property
    def seconds_on_orders(self) -> float:
        """How long orders that no file lists were searched for."""
        return sum(node.orders.seconds for node in self.nodes if node.orders is not None)

    @property
    def stopped(self) -> bool:
        """Whether the search was stopped before every node was searched."""
        return any(not node.searched for node in self.nodes)

    def to_json(self) -> str:
        """The result as JSON: `moeparity show schema explain` is its schema."""
        return to_json(SCHEMA, self)
