"""Finds the shortest order of the algebra for a shape. No torch here.

A level that leaves several values is recognised by its first accumulator. What it leaves is a smaller shape, for which
the rest of the order is found in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moeparity.numerics.orders import AnyTree, Level, Order, OrderError, Sum, parse, tree
from moeparity.probe.shape import Clusters, Shape, clusters, numbers, parents, shape_of, tree_of

_DEEPEST = 4
_DIVISORS = 64
_WIDTHS = 64


def compact(shape: Shape, *, every: bool = False) -> list[Order]:
    """Orders over `shape.leaves` leaves with this shape: fewest levels first, then fewest characters.

    The last one is the tree written out, which always exists; for one leaf it is `sequential`. If one level is enough,
    orders of several levels are only sought with `every`, since levels may have to state different dtypes. If a level
    adds all its values at once, several orders share a shape, and the order within the level can't be seen.
    """
    if shape.leaves == 1:
        return [parse("sequential")]
    return [*sorted(dict.fromkeys(_orders(shape, _DEEPEST, every=every)), key=_sort_key), explicit(shape)]


def _sort_key(order: Order) -> tuple[bool, int, int]:
    """The sort key. torch's cascade is plausible as a whole sum of 8 lanes; after another level, or with few other
    lanes, it may be a coincidence.
    """
    last = order.levels[-1]
    odd = last.name == "cascade" and (len(order.levels) > 1 or last.numbers != parse("cascade").levels[0].numbers)
    return odd, len(order.levels), len(str(order))


def explicit(shape: Shape, contracted: Sequence[int] = ()) -> Order:
    """The shape as a written-out tree."""
    words = ("fma",) if contracted else ()
    return Order((Level(name="tree", explicit=tree_of(shape, frozenset(contracted)), words=words),))


def _orders(shape: Shape, deepest: int, *, every: bool) -> list[Order]:
    sets = clusters(shape)
    orders = []
    for text in _single(shape):
        if _has_order(shape, text, sets):
            orders.append(parse(text))
            if text == "cascade" and deepest == _DEEPEST and not every:
                return orders
            if not (text.startswith("cascade") or every or _at_once(shape)):
                return orders
    for text in dict.fromkeys(_first_levels(shape, sets) if deepest > 1 else ()):
        remainder = _left_by(shape, text, sets)
        if remainder is not None:
            (level, _) = parse(f"{text} | sequential").levels
            orders += [Order((level, *order.levels)) for order in _orders(remainder, deepest - 1, every=every)]
    return orders


def _has_order(shape: Shape, text: str, sets: Clusters) -> bool:
    try:
        candidate = shape_of(tree(parse(text), shape.leaves), shape.leaves, shape.absent)
    except OrderError:
        return False
    return len(candidate.merges) == len(shape.merges) and clusters(candidate).keys() == sets.keys()


def _single(shape: Shape) -> Iterator[str]:
    """Orders of one level, the shortest texts first."""
    yield from ("sequential", "reverse", "fold_hi", "fold_lo", "cascade")
    deepest = [value for value in shape.merges[0] if value < shape.leaves] if shape.merges else []
    if len(shape.merges) == shape.present - 1 and all(min(merge) < shape.leaves for merge in shape.merges):
        yield from (f"rotate({start}, {step})" for start in deepest for step in (1, -1))
    if _at_once(shape):
        widest = max(map(len, shape.merges))
        yield from ("sequential(neumaier)", "reverse(neumaier)")
        yield from (f"fused({width})" for width in (widest - 1, widest))
    yield from _cascades(shape)


def _at_once(shape: Shape) -> bool:
    return any(len(merge) > 2 for merge in shape.merges)


def _cascades(shape: Shape) -> Iterator[str]:
    chain = _chain(shape)
    if len(chain) < 2:
        return
    step = chain[1]
    lanes = [lane for lane in range(1, min(step, 1 << 12) + 1) if step % lane == 0][:_DIVISORS]
    yield from (f"cascade({_pair(lane, step // lane)})".replace("()", "") for lane in lanes)
    yield from (f"cascade({_pair(lane, count)})".replace("()", "") for lane in {1, step} for count in (1, 2, 4, 8))
    for count in (4, 1, 2, 3, 5, 6, 7, 8):
        yield f"cascade({_pair(step, count)}, halves)".replace("(, ", "(")


def _pair(lanes: int, accumulators: int) -> str:
    return ", ".join([f"lanes={lanes}"] * (lanes != 8) + [f"accumulators={accumulators}"] * (accumulators != 4))


def _first_levels(shape: Shape, sets: Clusters) -> Iterator[str]:
    """First levels whose first accumulator is the chain that starts with leaf 0."""
    chain = _chain(shape)
    if len(chain) > 1:
        run = next((i for i, leaf in enumerate(chain) if leaf != i), len(chain))
        word = ", neumaier" if _at_once(shape) else ""
        yield f"lanes({chain[1]}{word})"
        if run > 1:
            yield f"blocks({run}{word})"
        if run < len(chain) and chain[run] % run == 0:
            threads = chain[run] // run
            yield f"threads({threads}, vector={run}{word})" if run > 1 else f"threads({threads}{word})"
    codes = numbers(shape.leaves)
    for width in _prefixes(shape, sets):
        # Test what their first additions would be; a fold of up to three neighbours is found as a block.
        if width > 3 and all((codes[i] + codes[i + 1]) % (1 << 128) in sets for i in (0, 2)):
            yield f"fold_lo({width})"
        if width > 2 and len(chain) > 1 and chain[1] == 1 << ((width - 1).bit_length() - 1):
            yield f"fold_hi({width})"


def _chain(shape: Shape) -> list[int]:
    """Leaf 0 and the leaves that are added to its accumulator one by one."""
    taken_by = parents(shape)
    chain, value = [0], 0
    while taken_by[value] >= 0:
        merge = shape.merges[taken_by[value]]
        if value == 0 and len(merge) > 2 and max(merge) < shape.leaves:
            return sorted(merge)
        leaves = [leaf for leaf in merge if leaf != value]
        if len(leaves) != 1 or leaves[0] >= shape.leaves:
            break
        chain.append(leaves[0])
        value = shape.leaves + taken_by[value]
    return chain


def _prefixes(shape: Shape, sets: Clusters) -> list[int]:
    """Widths of runs from leaf 0 that are added up before anything else is added to them, or that begin a chain."""
    total, widths = 0, []
    for leaf, number in enumerate(numbers(shape.leaves)[:-1]):
        total = (total + number * (leaf not in shape.absent)) % (1 << 128)
        if total in sets:
            widths.append(leaf + 1)
    return widths[:_WIDTHS]


@dataclass(frozen=True, slots=True)
class _Placement:
    tops: dict[int, int]
    absent: frozenset[int]


def _left_by(shape: Shape, text: str, sets: Clusters) -> Shape | None:
    """The shape over the values that a first level leaves; None if the level does not fit."""
    whole = tree(parse(f"{text} | sequential"), shape.leaves)
    values: tuple[AnyTree, ...] = whole if isinstance(whole, tuple) else ()
    if isinstance(whole, Sum) or len(values) < 2 or len(values) >= shape.leaves:
        return None
    placement = _placement(shape, values, sets)
    if placement is None:
        return None
    inside = _inside(shape, placement.tops)
    places, merges = {**placement.tops}, []
    for k, merge in enumerate(shape.merges):
        if shape.leaves + k in inside:
            continue
        merges.append(tuple(places[value] for value in merge))
        places[shape.leaves + k] = len(values) + len(merges) - 1
    return Shape(len(values), tuple(merges), placement.absent)


def _placement(shape: Shape, values: Sequence[AnyTree], sets: Clusters) -> _Placement | None:
    """Where in `shape` each value of a level is made; None if one is not made there, or in another way."""
    tops: dict[int, int] = {}
    absent = set()
    for i, value in enumerate(values):
        part = shape_of((value,), shape.leaves, shape.absent)
        sums = clusters(part) if part.merges else {}
        if not sums.keys() <= sets.keys():
            return None
        if sums:
            tops[shape.leaves + sets[list(sums)[-1]]] = i
        elif isinstance(value, int) and value not in shape.absent:
            tops[value] = i
        else:
            absent.add(i)
    return _Placement(tops, frozenset(absent))


def _inside(shape: Shape, tops: dict[int, int]) -> set[int]:
    """The values made on the way to `tops`, themselves included."""
    inside = set(tops)
    for k in reversed(range(len(shape.merges))):
        if shape.leaves + k in inside:
            inside |= set(shape.merges[k])
    return inside
