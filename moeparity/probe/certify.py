"""Checks whether a callable adds in a stated order: by the bits of sums that cancel to rounding residue, and by its
tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from moeparity.errors import MoeparityError
from moeparity.numerics.bits import int_view, ulps
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.orders import Order, OrderError, tree
from moeparity.ops.norm.launches import SM_COUNT, Launch
from moeparity.ops.norm.reductions import order_of
from moeparity.probe.calls import Setup
from moeparity.probe.classes import PASSES, NotRepeatable, classes
from moeparity.probe.compact import compact
from moeparity.probe.find import outputs_of, refuse_race
from moeparity.probe.live_all_reduce import Ranks, simulated_equals
from moeparity.probe.masks import Masks
from moeparity.probe.nonnegative import Exponentials, Squares
from moeparity.probe.replay import AFTER, Way, by_product, contracted, equal, uncontracted, zero_sum
from moeparity.probe.reveal import NoTree, reveal
from moeparity.probe.row_trees import rows_at
from moeparity.probe.shape import same_shape, shape_of
from moeparity.probe.target import Function

SUMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim with which a callable is compared: an order and the rounding of its additions, or a collective.

    text: as the user named it. order: written out, or the name of a launch rule, of which `sm_count` and `ranks` are
    arguments.
    product: the dtype to which products or squares are rounded before they are added; None if any will do.
    cut: whether the sum's last bits are cut off where it is stored (`bf16_rz`); else it is rounded to nearest.
    """

    text: str
    order: str | None = None
    accumulate: str = "fp32"
    product: str | None = None
    collective: str | None = None
    sm_count: int = SM_COUNT
    ranks: int = 1
    cut: bool = False

    def order_at(self, setup: Setup) -> Order:
        """The order over n leaves of a kernel launched for rows as in `setup`. Raises OrderError."""
        assert self.order is not None
        launch = Launch(
            hidden=setup.n,
            rows=setup.m,
            dtype=str(name_of(setup.dtype)),
            sm_count=self.sm_count,
            ranks=self.ranks,
        )
        order = order_of(self.order, launch)
        tree(order, setup.n)
        return order


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassVerdict:
    """The result for one class of outputs in one setup.

    equal, replayed: how many sums have equal bits, of how many; both 0 if no sum can be read from the output (softmax).
    same_tree: whether the tree is the stated one. order: the order that the probes show. first: the first sum that
    differs, with both values and their distance. gives: other ways to add that have the callable's bits, if the stated
    order does not.
    """

    setup: Setup
    label: str
    equal: int = 0
    replayed: int = 0
    same_tree: bool | None = None
    order: str = ""
    reason: str = ""
    first: str = ""
    gives: str = ""

    @property
    def holds(self) -> bool:
        """Whether something was compared and everything agrees."""
        return not self.reason and self.same_tree is not False and self.equal == self.replayed


def certify(function: Function, setups: Sequence[Setup], claim: Claim) -> list[ClassVerdict]:
    """Compare every class of outputs in every setup with `claim`.

    Raises MoeparityError if the order is not for n leaves, or if the library would not take the message.
    """
    verdicts: list[ClassVerdict] = []
    for setup in setups:
        _refuse(function, setup, claim)
        outputs = outputs_of(function, setup)
        try:
            refuse_race(function, setup)
            if isinstance(outputs, (Squares, Exponentials)):
                outputs.start(range(setup.m))
            groups = classes(outputs)
        except (NotRepeatable, NoTree) as reason:
            verdicts.append(ClassVerdict(setup=setup, label="all", reason=str(reason)))
            continue
        if isinstance(outputs, Ranks) and claim.collective is not None:
            verdicts.append(_collective(outputs, setup, claim.collective))
            continue
        for group in groups:
            label = "all" if len(group.positions) == outputs.positions else outputs.label(group.positions)
            try:
                if isinstance(outputs, (Squares, Exponentials)):
                    verdicts.append(_rows(outputs, group.positions, label, claim))
                else:
                    verdicts.append(_sums(Masks(outputs, group.positions), setup, label, claim))
            except NoTree as reason:
                verdicts.append(ClassVerdict(setup=setup, label=label, reason=str(reason)))
    return verdicts


def _refuse(function: Function, setup: Setup, claim: Claim) -> None:
    kind = function.kind
    if claim.order is None:
        if kind.name != "all_reduce":
            raise MoeparityError(f"--against {claim.text}: a collective, and {function.name} is called as {kind.name}.")
        return
    try:
        order = claim.order_at(setup)
    except OrderError as error:
        raise MoeparityError(f"--against {claim.text}: {str(error).rstrip('.')}, with --n {setup.n}.") from None
    if order.fma and not kind.products:
        raise MoeparityError(f"--against {claim.text}: fma contracts products, and {kind.name} adds {kind.adds}.")


def _sums(masks: Masks, setup: Setup, label: str, claim: Claim) -> ClassVerdict:
    order = claim.order_at(setup)
    rows, factors = zero_sum(masks.n, SUMS, masks.dtype, seed=1 << 21)
    first_factors = factors if masks.of.products else None
    out = masks.sums(rows, first_factors)
    if any(equal(masks.sums(rows, first_factors), out) < SUMS for _ in range(PASSES)):
        raise NoTree(f"{SUMS} sums made again gave other bits")
    afters = AFTER if masks.scale != 1 else AFTER[:1]
    scaled = [Way(order, claim.accumulate, after, cut=claim.cut) for after in afters]
    ways = [way for leaf in scaled for way in (by_product(leaf, claim.product) if masks.of.products else [leaf])]
    closest = max((way.sums(rows, first_factors, masks.output) for way in ways), key=lambda sums: equal(sums, out))
    equal_sums = equal(closest, out)
    shape = reveal(masks.ask, masks.n, masks.capacity)
    others = (order, compact(shape)[0]) if equal_sums < SUMS else ()
    return ClassVerdict(
        setup=setup,
        label=label,
        equal=equal_sums,
        replayed=SUMS,
        same_tree=same_shape(shape, shape_of(tree(order, masks.n), masks.n)),
        order=str(compact(shape)[0]),
        first=_first(out, closest),
        gives=_gives(masks, others, claim, lambda way: equal(way.sums(rows, first_factors, masks.output), out) == SUMS),
    )


def _first(out: torch.Tensor, expected: torch.Tensor) -> str:
    """The first of the callable's sums that differs from the replayed one, in words; "" if all are equal."""
    if out.dtype != expected.dtype:
        return f"it returns {name_of(out.dtype)}, not {name_of(expected.dtype)}"
    differ = int_view(out) != int_view(expected)
    if not differ.any():
        return ""
    at = int(differ.int().argmax())
    number, wanted = (x[at].item() for x in (out, expected))
    return f"sum {at} is {number:.9g} and was to be {wanted:.9g}, {int(ulps(out, expected)[at])} ulp"


def _gives(masks: Masks, orders: Sequence[Order], claim: Claim, fits: Callable[[Way], bool]) -> str:
    """Which ways give the callable's bits: the stated and the found order, products contracted or not, other
    roundings.
    """
    for order, accumulate in product(dict.fromkeys(orders), dict.fromkeys((claim.accumulate, "fp32", "bf16", "fp16"))):
        for written in (order, contracted(order) if masks.of.products else None, uncontracted(order)):
            ways = [Way(written, accumulate, after, cut=claim.cut) for after in AFTER] if written is not None else []
            for way in (way for plain in ways for way in (by_product(plain) if masks.of.products else [plain])):
                if fits(way):
                    narrow = f", products rounded to {way.product}" if way.product else ""
                    return f"{written}, additions rounded to {accumulate}{narrow}{' ' * bool(way.after)}{way.after}"
    return ""


def _rows(rows: Squares | Exponentials, at: Sequence[int], label: str, claim: Claim) -> ClassVerdict:
    stated = claim.order_at(rows.setup)
    revealed = rows_at(rows, at, stated, claim.product)
    order, n = revealed.order, rows.setup.n
    shapes = [shape_of(tree(either, n), n) for either in (order, stated)]
    return ClassVerdict(
        setup=rows.setup,
        label=label,
        equal=revealed.equal,
        replayed=revealed.replayed,
        same_tree=same_shape(*shapes) and revealed.accumulate == claim.accumulate,
        order=f"{order}, additions rounded to {revealed.accumulate}",
    )


def _collective(ranks: Ranks, setup: Setup, name: str) -> ClassVerdict:
    try:
        equal_elements, total = simulated_equals(ranks, name)
    except ValueError as error:
        raise MoeparityError(f"--against {name}: {error}.") from None
    return ClassVerdict(setup=setup, label="all", equal=equal_elements, replayed=total)


def coverage(function: Function, setups: Sequence[Setup], verdicts: Sequence[ClassVerdict]) -> str:
    """What the verdict covers and what it does not, in words."""
    first = setups[0]
    replayed = sum(verdict.replayed for verdict in verdicts)
    parts = [f"{function.kind.name} over {first.n} values of {name_of(first.dtype)}"]
    parts += [f"{replayed} outputs on zero-sum data with exponents from -14 to 14 (fp16: -5 to 5)"] if replayed else []
    parts += ["the tree, by probes at every leaf"] if any(verdict.same_tree is not None for verdict in verdicts) else []
    if function.rests_on():
        return (
            f"covers {'; '.join(parts)}. Not other shapes, dtypes or launches; not what ptxas makes of the PTX; not "
            "NaN, infinities or overflow."
        )
    threads = torch.get_num_threads()
    return (
        f"covers {'; '.join(parts)}. Not other shapes, dtypes, alignments, threads ({threads} here unless given), "
        "machines or torch builds; not NaN, infinities or overflow."
    )
