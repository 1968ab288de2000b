"""Orders that a kernel is likely to add in, where it can't be called on inputs made for a probe. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from moeparity.numerics.orders import OrderError, parse, tree
from moeparity.probe.compact import compact
from moeparity.probe.shape import clusters, shape_of

EVERY_TREE = 8
"""Every tree is listed for sums of at most this many values: 135135 trees for eight values."""
_WIDEST = 8192
_VECTORS = (2, 4, 8)
_FINAL = ("sequential", "reverse", "fold_hi", "fold_lo")
_WIDTH = "{}({})"


def likely_orders(leaves: int, *, products: bool) -> Iterator[str]:
    """Orders of the algebra over this many values, those of the fewest levels first, then every tree if they are few.

    Each also with its products unrounded (`fma`), if the values are `products`. Orders with the same tree may come
    twice.
    """
    words = ("", "fma") if products else ("",)
    for first in (*_FINAL, "cascade", "sequential(kahan)", "sequential(neumaier)", *_turned(leaves), *_adders(leaves)):
        yield from _contracted(first, words)
    levels, widths = list(_partial_levels(leaves)), _widths(leaves)
    for first, last in product(levels, _FINAL):
        yield from (f"{level} | {last}" for level in _contracted(first, words))
    if leaves <= EVERY_TREE:
        for text in every_tree(range(leaves)):
            yield from _contracted(f"tree({text})", words)
    inner = [_WIDTH.format(form, width) for width in widths for form in ("fold_hi", "fold_lo", "blocks", "lanes")]
    for first, second, last in product(levels, inner, _FINAL):
        yield from (f"{level} | {second} | {last}" for level in _contracted(first, words))


def every_tree(leaves: Sequence[int]) -> Iterator[str]:
    """Every way to add up these values two by two, as `tree(...)` takes it; chains first."""
    if len(leaves) == 1:
        yield str(leaves[0])
        return
    first, *others = leaves
    for size in range(1, len(leaves)):
        for right in combinations(others, size):
            left = [first, *(leaf for leaf in others if leaf not in right)]
            for of_left, of_right in product(every_tree(left), list(every_tree(right))):
                yield f"{of_left}+{of_right if size == 1 else f'({of_right})'}"


def shortest(text: str, leaves: int) -> str:
    """The shortest order with the tree of this one, if nothing but that tree is stated; else the order itself."""
    order = parse(text)
    if any(level.words or level.accumulate or level.round for level in order.levels):
        return str(order)
    return str(compact(shape_of(tree(order, leaves), leaves))[0])


def tree_key(text: str, leaves: int | None) -> object:
    """A key that is equal for orders with the same tree over this many values; with None, only for the same order."""
    if leaves is None:
        return text
    order = parse(text)
    words = {word for level in order.levels for word in level.words if word not in ("zero", "skip", "back")}
    return frozenset(clusters(shape_of(tree(order, leaves), leaves))), frozenset(words)


def chain_of(leaves: int) -> str:
    """A written-out order, which fits sums of this many values only."""
    return f"tree({'+'.join(map(str, range(leaves)))})"


def _contracted(text: str, words: Sequence[str]) -> Iterator[str]:
    """The order as it is, and with its products contracted, where its form can have that."""
    for word in words:
        name, bracket, arguments = text.partition("(")
        inside = ", ".join(filter(None, (arguments.removesuffix(")"), word)))
        candidate = f"{name}({inside})" if inside else name
        if not word or _reads(candidate):
            yield candidate if bracket or word else text


def _reads(text: str) -> bool:
    """Whether a level can be parsed, alone or followed by another level."""
    for order in (text, f"{text} | sequential"):
        try:
            parse(order)
        except OrderError:
            continue
        return True
    return False


def _turned(leaves: int) -> Iterator[str]:
    if leaves <= 64:  # as many ranks or slots as a ring has
        yield from (f"rotate({start}, {step})" for start in range(leaves) for step in (1, -1))


def _adders(leaves: int) -> Iterator[str]:
    """Orders of adders that add several values at once, as tensor cores do."""
    yield from (f"fused({terms})" for terms in (2, 4, 8, 16, 32) if terms < leaves)


def _widths(leaves: int) -> list[int]:
    """Powers of two, then their thirds' multiples, then what cuts the values into a few parts."""
    most = min(leaves, _WIDEST)
    twos = [1 << i for i in range(1, most.bit_length()) if 1 << i < most]
    threes = [3 << i for i in range(most.bit_length()) if 3 << i < most]
    parts = [-(-leaves // count) for count in range(2, 17)]
    return [width for width in dict.fromkeys((*twos, *threes, *parts)) if 1 < width < most]


def _partial_levels(leaves: int) -> Iterator[str]:
    for width in _widths(leaves):
        yield from (_WIDTH.format(form, width) for form in ("lanes", "blocks", "fold_hi", "fold_lo", "halves"))
    for width, vector in product(_widths(leaves), _VECTORS):
        if width * vector < leaves:
            yield f"threads({width}, vector={vector})"
            yield f"blocks({width * vector}, vector={vector}, back)"
            yield f"threads({width}, vector={vector}, back)"
