"""What is said of choices that were tried: what they give against what was to be explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moeparity.output.json import to_json

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
    """Known choices, with what they give on the inputs that were met, against what was to be explained.

    choices: as `node:attribute=value`; of a number of the model, such as a scale, `node:parameter=value`.
    equal: share of elements with equal values; exact: every bit and the dtype are equal. compared: the share of the
    elements that this was looked at on.
    mean_ulp: mean distance in ulps of the coarser dtype; infinite where a value is not finite.
    between: where an exact choice is a number of which others do as well.
    faults: what those of the choices mean that are faults, as sentences say it.
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


def is_near(equal: float, as_it_is: float) -> bool:
    """Whether choices under which the share `equal` of elements is equal are worth a name, beside `as_it_is` without
    them: they make at least half of the others equal. What makes fewer is the first among strangers.
    """
    return equal > as_it_is and 2 * (1 - equal) <= 1 - as_it_is


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChoice:
    """A choice that these values do not decide beside its `value`, with `/` between those of several phases.

    others: each by itself gives the same bits here; of whole numbers of which any is allowed, only the first that does
    is looked for. untried: these were not held against the values, since the work for that was spent. unread: nor were
    these, since a node reads under them what was not recorded.
    """

    place: str
    value: str
    others: tuple[str, ...]
    untried: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """Where a token stands: forward, sequence and position, each counted from 0."""

    forward: int
    sequence: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTokens:
    """An expert that all `differing` tokens went to, beside how many tokens did."""

    expert: int
    differing: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Of which tokens bits are other ones: so many of all, and the first.

    not_finite: elements that are NaN or infinite where the computed ones are finite. experts: the one expert, or two,
    that each of these tokens went to, and where that is so no other one did; empty where nobody knows of one.
    """

    differing: int
    tokens: int
    first: TokenPlace
    not_finite: int
    experts: tuple[ExpertTokens, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the nearest choices leave of a node's values.

    differing: share of the elements whose bits differ; furthest: by how many ulps at most, infinite where a value is
    not finite. outside: how many elements lie outside of what other legal orders of the same sums give, of `compared`
    ones, and `draws_outside` how many an order that is legal has there at most; None where no orders can be drawn:
    `not_drawn` says why. beyond_orders: whether no legal order explains what is left, in all or of one token. extent:
    of which tokens it is; None where shapes differ.
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
class Explanation:
    """What choices give the recorded bits of a node, held against those of a start profile.

    nodes: all that were computed anew, where values between were not recorded. forwards: those of the trace, from 0,
    that are explained so, in these `phases`; a node whose forwards were not all computed alike has an explanation for
    each part. elements: those of tokens that are no padding. as_it_is: share of elements equal under the start profile.
    tried: how many combinations of other choices were run, in `calls` kernel calls. matches: what gives every bit on
    all micro-batches, the plainest first; empty where the start profile's own choices do; where nothing does what comes
    nearest, the best first. open: what these values do not decide beside the first of them. padding: at how many
    tokens of padding it gives other bits, and how many there are: they decide nothing. other_shape: what a token has
    in place of what the checkpoint says, in words: such values are compared with nothing; empty where shapes are equal.
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
    """What is said of a trace's nodes, held against a start profile in one dtype.

    taken: what is supposed of the program where attention and the rotation are explained. whole: whether the program
    got to the end of its recording. asked: whether nodes were named; else all were meant
    that the trace shows.
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

    @property
    def exit_code(self) -> int:
        """0 where every node is explained, 1 where one is not, 3 where one that was asked for is not shown."""
        if any(not node.explained for node in self.nodes):
            return 1
        return 3 if not self.nodes or (self.asked and self.unseen) else 0

    def to_json(self) -> str:
        """The result as JSON: `moeparity show schema explain` is its schema."""
        return to_json(SCHEMA, self)
