"""The probe: finds the order of each class of outputs of a function, in given setups."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from moeparity.numerics.dtypes import name_of
from moeparity.numerics.orders import Order
from moeparity.probe.calls import Setup, Sums, sums_of
from moeparity.probe.classes import PASSES, Fingerprint, NotRepeatable, OutputGroup, classes
from moeparity.probe.compact import explicit
from moeparity.probe.express import NAMES, Evidence, expressions, usual_dtype
from moeparity.probe.live_all_reduce import Ranks, collectives_like, sets_of
from moeparity.probe.masks import Masks
from moeparity.probe.nonnegative import Exponentials, Squares
from moeparity.probe.replay import AFTER, Way, by_product, contracted, equal, zero_sum
from moeparity.probe.reveal import Block, NoTree, reveal
from moeparity.probe.row_trees import rows_at
from moeparity.probe.shape import Shape, visible
from moeparity.probe.target import Function
from moeparity.probe.tree_arithmetic import arithmetic

REPLAYED, REPLAYED_LARGE, LARGE, CHECKED = 512, 256, 2048, 256
"""`REPLAYED` sums are replayed, or `REPLAYED_LARGE` with more than `LARGE` leaves; `CHECKED` pairs of leaves are
checked.
"""

_ROWS: dict[str, type[Squares | Exponentials]] = {"rms_norm": Squares, "softmax": Exponentials}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """How one class of outputs is added up.

    order: None if there is no single tree; `reason` says why. accumulate: to what additions round, unless a level of
    the order states it. products: `contracted` (fma), `rounded` to `product`, or `exact` if that makes no difference;
    "" if no replay shows it. after: what is done to the sum. bits: how many bits additions keep that round to no known
    dtype. sites: rounding sites and forms of the op around the sum, as its attributes. equal, replayed: how many
    replayed sums of zero-sum data had the same bits.
    """

    order: Order | None
    accumulate: str = ""
    output: str = ""
    products: str = ""
    product: str = ""
    after: str = ""
    equal: int = 0
    replayed: int = 0
    reason: str = ""
    bits: tuple[int, ...] = ()
    sites: tuple[tuple[str, str], ...] = ()

    @property
    def replays(self) -> bool:
        """Whether there is an order, and every sum that was replayed in it had the same bits."""
        return self.order is not None and self.equal == self.replayed


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Outputs of one setup that are added up alike: in words and as positions, and the name of their class."""

    label: str
    positions: tuple[int, ...]
    name: str


@dataclass(slots=True)
class Result:
    """What a probe found: trees by the name of their class, and for each setup where they occur, or why there is none.

    collectives: shipped collectives whose order map is the one found, element by element.
    """

    function: Function
    trees: dict[str, Tree] = field(default_factory=dict)
    places: list[tuple[Setup, list[OutputPlace], str]] = field(default_factory=list)
    collectives: tuple[str, ...] = ()
    probes: int = 0
    seconds: float = 0.0

    @property
    def unknown(self) -> list[str]:
        """What has no order that replays, in words: classes of outputs, and setups without any."""
        words = [
            f"{name} has no fixed tree"
            if tree.order is None
            else f"{name} replays {tree.equal} of {tree.replayed} sums only"
            for name, tree in self.trees.items()
            if not tree.replays
        ]
        return words + [f"there is no fixed tree ({reason})" for _, _, reason in self.places if reason]


def probe(function: Function, setups: Sequence[Setup]) -> Result:
    """Probe `function` in each setup; all have the same n and dtype. A class that several setups share is probed once.

    Raises MoeparityError if the function can't be called as its kind is.
    """
    result, names = Result(function), dict[Fingerprint, str]()
    start = time.perf_counter()
    for setup in setups:
        sums = outputs_of(function, setup)
        try:
            refuse_race(function, setup)
            if isinstance(sums, (Squares, Exponentials)):
                sums.start(range(setup.m))
            groups = classes(sums)
        except (NotRepeatable, NoTree) as reason:
            result.places.append((setup, [], str(reason)))
            continue
        for group in groups:
            if group.fingerprint not in names:
                name = names[group.fingerprint] = _name(len(names))
                result.trees[name], probes = tree_at(sums, group)
                result.probes += probes
        places = [
            OutputPlace(
                "all" if len(group.positions) == sums.positions else sums.label(group.positions),
                group.positions,
                names[group.fingerprint],
            )
            for group in groups
        ]
        result.places.append((setup, places, ""))
    if function.kind.name == "all_reduce":
        result.collectives = _collectives(result)
    result.seconds = time.perf_counter() - start
    return result


def refuse_race(function: Function, setup: Setup) -> None:
    """Raises NotRepeatable if the bits of a compiled kernel depend on which of its threads go first."""
    reason = function.race(setup.n, setup.m, setup.width)
    if reason:
        raise NotRepeatable(reason)


def _collectives(result: Result) -> tuple[str, ...]:
    every = (_collectives_at(result, setup, places) for setup, places, _ in result.places)
    first, *others = map(tuple, every)
    return tuple(name for name in first if all(name in names for names in others))


def _collectives_at(result: Result, setup: Setup, places: Sequence[OutputPlace]) -> Sequence[str]:
    """The collectives that agree in one setup."""
    trees = [result.trees[place.name] for place in places]
    if not trees or not all(tree.replays for tree in trees):
        return ()
    sets = {
        position: sets_of(tree.order, setup.n)
        for place, tree in zip(places, trees, strict=True)
        if tree.order
        for position in place.positions
    }
    return collectives_like(sets, trees[0].accumulate, setup, scatters=result.function.scatters)


def outputs_of(function: Function, setup: Setup) -> Sums | Squares | Exponentials:
    """The outputs of a callable in one setup, each of which is a sum."""
    kind = function.kind.name
    if kind in _ROWS:
        return _ROWS[kind](function, setup)
    return Ranks(function, setup) if kind == "all_reduce" else sums_of(function, setup)


def _name(number: int) -> str:
    """A, B, ..., Z, A1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def tree_at(sums: Sums | Squares | Exponentials, group: OutputGroup) -> tuple[Tree, int]:
    """The tree of the outputs in `group`, and how many probes it took."""
    if isinstance(sums, (Squares, Exponentials)):
        before = sums.probes
        return _of_rows(sums, group), sums.probes - before
    masks = None
    try:
        masks = Masks(sums, group.positions)
        shape = reveal(masks.ask, masks.n, masks.capacity)
        confirm(masks, shape)
        tree = _replay(masks, shape, arithmetic(masks, shape))
    except NoTree as reason:
        tree = Tree(order=None, reason=str(reason))
    return tree, 0 if masks is None else masks.probes


def _of_rows(rows: Squares | Exponentials, group: OutputGroup) -> Tree:
    try:
        revealed = rows_at(rows, group.positions)
    except NoTree as reason:
        return Tree(order=None, reason=str(reason))
    return Tree(
        order=revealed.order,
        accumulate=revealed.accumulate,
        output=revealed.output,
        after="" if revealed.form is None else str(revealed.form),
        equal=revealed.equal,
        replayed=revealed.replayed,
        sites=revealed.sites,
    )


def confirm(masks: Masks, shape: Shape) -> None:
    """Check random pairs of leaves: they must hide the units that the shape says. Raises NoTree if they do not."""
    draw = random.Random(2)  # noqa: S311
    checked = min(CHECKED, masks.n * masks.n)
    pairs = [draw.sample(range(masks.n), 2) for _ in range(checked)]
    units = draw.sample(range(masks.n), min(masks.n, masks.capacity))
    counts = masks.ask([Block(a, [b], units) for a, b in pairs])
    expected = visible(shape, pairs, units)
    wrong = sum(count not in ([a], [b]) for (count, (a, b)) in zip(counts, expected, strict=True))
    if wrong:
        raise NoTree(f"{wrong} of {checked} probes made afterwards contradict the tree that the others showed")


def _replay(masks: Masks, shape: Shape, evidence: Evidence) -> Tree:
    """The first way to add that agrees with everything seen and in which all sums are reproduced; else the nearest."""
    # If a call takes few sums, calls decide how long this takes.
    count = min(REPLAYED if masks.n <= LARGE else REPLAYED_LARGE, max(64, 16 * len(masks.at)))
    rows, factors = zero_sum(masks.n, count, masks.dtype, seed=1 << 20)
    first_factors = factors if masks.of.products else None
    out = masks.sums(rows, first_factors)
    if any(equal(masks.sums(rows, first_factors), out) < count for _ in range(PASSES)):
        raise NoTree(f"{count} sums made again gave other bits")
    best, best_way = -1, None
    for way in _ways(masks, shape, evidence):
        matches = equal(way.sums(rows, first_factors, masks.output), out)
        if matches > best:
            best, best_way = matches, way
        if matches == count:
            break
    assert best_way is not None
    products, product = _products(masks, best_way) if best == count else ("", "")
    fused = contracted(best_way.order)
    if products == "rounded" and evidence.contracted is None and fused is not None:
        # If an fma gives the same bits too, the output hides which of both it is.
        way = Way(fused, best_way.accumulate, best_way.after)
        products = "" if equal(way.sums(rows, first_factors, masks.output), out) == count else products
    return Tree(
        order=best_way.order,
        accumulate=best_way.accumulate,
        output=name_of(masks.output) or "",
        products=products,
        product=product,
        after=best_way.after,
        equal=best,
        replayed=count,
        bits=tuple(sorted({bits for bits in evidence.bits if bits not in {None, *NAMES}})),  # type: ignore[misc]
    )


def _ways(masks: Masks, shape: Shape, evidence: Evidence) -> Iterator[Way]:
    """The ways that the probes leave open, the plainest first."""
    usual = usual_dtype(evidence)
    for accumulate in [usual] if usual else dict.fromkeys(["fp32", name_of(masks.output) or ""]):
        orders = expressions(shape, evidence, accumulate) or [explicit(shape, sorted(evidence.contracted or ()))]
        for order in orders:
            for after in AFTER if masks.scale != 1 else AFTER[:1]:
                way = Way(order, accumulate, after)
                yield from by_product(way) if masks.of.products else (way,)
                fused = contracted(order) if masks.of.products and evidence.contracted is None else None
                if fused is not None:
                    yield Way(fused, accumulate, after)


def _products(masks: Masks, way: Way) -> tuple[str, str]:
    """What happens to products in a way that gave all bits, and to which dtype they are rounded."""
    if not masks.of.products:
        return "", ""
    narrow = masks.dtype.itemsize == torch.bfloat16.itemsize
    unrounded = way.product == "fp64" or (narrow and not way.product)
    if way.order.fma or (unrounded and way.accumulate not in {"fp32", "fp64"}):
        return "contracted", ""
    return ("exact", "") if unrounded else ("rounded", way.product or "fp32")
