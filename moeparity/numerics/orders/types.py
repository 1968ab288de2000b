"""The types of summation orders, and how they are spelled.

A tree is over the leaves of one sum; an `Order` gives a tree for any number of leaves.

A `Tree` is the index of a leaf, or a tuple of trees that are added from left to right. An `AnyTree` may also contain a
`Sum`, whose accumulator has further properties, or None: a padded +0, which is added like any other value. An `Order`
is a list of levels; each level adds up what the one before leaves. `native` is not an order: it stands for torch's own
kernel on the device at hand, about whose order nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

NATIVE = "native"
EXPLICIT = ("sequential", "reverse", "fold_hi", "fold_lo")
"""Orders without arguments that exist for any sum; a floor draws from them."""

Tree = int | tuple["Tree", ...]
AnyTree = Union[int, "Sum", tuple["AnyTree", ...], None]
How = Literal["plain", "kahan", "neumaier", "fused"]


class OrderError(ValueError):
    """An order that can't be read, or that is not for this number of leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """An accumulator and what is added to it from left to right; a tuple is one with all defaults.

    accumulate: every addition is rounded to it (None: the dtype given to the executor). round: the finished sum is
    rounded to it too. zero: it starts from +0 instead of its first child. fma: a child that is a leaf is a product and
    is added with one rounding; if it comes first, it is a product rounded to fp32. how: `kahan` and `neumaier`
    compensate; `fused` adds `width` children at once, exactly, with one rounding.
    """

    children: tuple[AnyTree, ...]
    accumulate: str | None = None
    round: str | None = None
    zero: bool = False
    fma: bool = False
    how: How = "plain"
    width: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """An integer argument of a level, at least `least`; it is optional if it has a default.

    by_name: it is printed with its name, as in `threads(8, vector=4)`.
    """

    name: str
    least: int | None = None
    default: int | None = None
    by_name: bool = False
    choices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of level: its arguments, the words that it takes, and whether it can leave more than one value
    (`partial`).
    """

    says: str
    numbers: tuple[Number, ...] = ()
    words: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of an order. numbers: all arguments of its form, 0 for a fold without a width. words: sorted.

    explicit: the tree of `tree(...)`, whose leaves are the values that reach this level.
    """

    name: str
    numbers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    accumulate: str | None = None
    round: str | None = None
    explicit: AnyTree = None

    def __str__(self) -> str:
        """As it is parsed: numbers, words and dtypes in parentheses, without those that are the form's defaults."""
        arguments = [] if self.explicit is None else [_spelling(self.explicit, "")]
        for number, value in zip(FORMS[self.name].numbers, self.numbers, strict=True):
            if value != number.default:
                arguments.append(f"{number.name}={value}" if number.by_name else str(value))
        arguments += self.words
        arguments += [f"{name}={dtype}" for name in DTYPES if (dtype := getattr(self, name)) is not None]
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name

    @property
    def partial(self) -> bool:
        """Whether it can leave more than one value."""
        return FORMS[self.name].partial and (self.name not in FOLDS or self.numbers[0] > 0)


@dataclass(frozen=True, slots=True)
class Order:
    """A summation order: levels, all but the last of which may leave several values; it prints itself as it is
    parsed.
    """

    levels: tuple[Level, ...]

    @property
    def fma(self) -> bool:
        """Whether leaves are products that are contracted into their additions."""
        return "fma" in self.levels[0].words

    @property
    def leaves(self) -> int | None:
        """The only number of leaves that it is for; None if it is for any."""
        first = self.levels[0]
        return None if first.explicit is None else len(leaves_of(first.explicit))

    def __str__(self) -> str:
        """The one canonical spelling."""
        return " | ".join(map(str, self.levels))


FOLDS = ("fold_hi", "fold_lo")
DTYPES = ("accumulate", "round")
"""The roundings that a level may state."""
CONTRACTED = "fma"
COMPENSATED: tuple[How, ...] = ("kahan", "neumaier")
_CHAIN = ("fma", "kahan", "neumaier", "zero")
_WIDTH = (Number(name="width", least=2, default=0),)

FORMS: dict[str, Form] = {
    "sequential": Form(says="left to right", words=_CHAIN),
    "reverse": Form(says="right to left", words=_CHAIN),
    "fold_hi": Form(
        says="first half + second half, again and again; padded with +0 to a power of two (`skip`: pads are left out). "
        "With a width: within each run of so many values",
        numbers=_WIDTH,
        words=("skip",),
        partial=True,
    ),
    "fold_lo": Form(says="as fold_hi, but neighbours first", numbers=_WIDTH, words=("skip",), partial=True),
    "halves": Form(
        says="of each run of so many values the first half + the second half, once; what has no partner stays as it is",
        numbers=(Number(name="width", least=2),),
        partial=True,
    ),
    "threads": Form(
        says="thread i owns elements (k*t+i)*v+j and adds them k, then j ascending (`back`: descending, as VDPBF16PS "
        "does of two); t threads, idle ones hold +0",
        numbers=(Number(name="threads", least=1), Number(name="vector", least=1, default=1, by_name=True)),
        words=(*_CHAIN, "back"),
        partial=True,
    ),
    "lanes": Form(
        says="k strided accumulators: value i goes to i mod k; those that get none are left out",
        numbers=(Number(name="lanes", least=1),),
        words=_CHAIN,
        partial=True,
    ),
    "blocks": Form(
        says="runs of so many neighbours, each from left to right; `vector`, `back`: so many at a time, each time from "
        "right to left",
        numbers=(Number(name="size", least=1), Number(name="vector", least=1, default=1, by_name=True)),
        words=(*_CHAIN, "back"),
        partial=True,
    ),
    "cascade": Form(
        says="torch CPU's sum (SumKernel.cpp, torch 2.13): 8 lanes of 4 accumulators, cascaded in blocks; `halves`: "
        "16-bit leaves, of which those 8 apart are added first. Outer dimensions: lanes=1, accumulators=1",
        numbers=(
            Number(name="lanes", least=1, default=8, by_name=True),
            Number(name="accumulators", least=1, default=4, by_name=True),
        ),
        words=("halves",),
    ),
    "fused": Form(
        says="the accumulator and the next w values are added exactly and rounded once, as an ideal w-term adder does",
        numbers=(Number(name="terms", least=1),),
        words=("zero",),
    ),
    "rotate": Form(
        says="cyclic, from value `start` upwards (step 1) or downwards (step -1)",
        numbers=(Number(name="start"), Number(name="step", choices=(1, -1))),
        words=_CHAIN,
    ),
    "tree": Form(says="written out: + adds from left to right, [a+b+c] adds exactly with one rounding", words=("fma",)),
    "unordered": Form(
        says="arrival order: one permutation, drawn from the seed",
        numbers=(Number(name="seed", least=0),),
        words=_CHAIN,
    ),
}
"""Every level by name."""


def children_of(tree: AnyTree) -> tuple[AnyTree, ...]:
    """What an accumulator adds up; () for a leaf or a padded zero."""
    return tree.children if isinstance(tree, Sum) else tree if isinstance(tree, tuple) else ()


def leaves_of(tree: AnyTree) -> list[int]:
    """The leaves of a tree, in the order they are written."""
    return [tree] if isinstance(tree, int) else [leaf for child in children_of(tree) for leaf in leaves_of(child)]


def _spelling(tree: AnyTree, brackets: str = "()") -> str:
    if isinstance(tree, int):
        return str(tree)
    text = "+".join(map(_spelling, children_of(tree)))
    return f"[{text}]" if isinstance(tree, Sum) else f"{brackets[:1]}{text}{brackets[1:]}"
