"""Reports of `moeparity kernel`: the orders that a probe found, and how a function compares with a claim."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch

from moeparity.numerics.dtypes import name_of
from moeparity.ops.norm.reductions import RULES
from moeparity.output.blocks import Block, Document, Status, group, lines, names
from moeparity.output.status import state_of, status
from moeparity.output.words import quantity
from moeparity.probe.calls import Setup, runs
from moeparity.probe.certify import Claim, ClassVerdict
from moeparity.probe.find import OutputPlace, Result, Tree
from moeparity.probe.target import Function

LONGEST = 300
"""A terminal shows at most this many characters of an order."""

_WIDTH = {"linear": "N", "combine": "H", "all_reduce": "E"}


def machine() -> str:
    """Processor, torch and date, which a figure has to name."""
    cpu = next((line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), "")
    today = datetime.now(UTC).date().isoformat()
    return f"{today}, {cpu or platform.machine()}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return file.read(4096).splitlines()
    except OSError:
        return []


def probed(result: Result) -> Document:
    """The report of a probe: the orders, and where each occurs."""
    return Document(command="kernel probe", subject=result.function.name, blocks=tuple(_probed(result)))


def _probed(result: Result) -> Iterator[Block]:
    setup, kind, code = result.places[0][0], result.function.kind, 3 if result.unknown else 0
    orders = sum(tree.order is not None for tree in result.trees.values())
    compared = f"checked on sums added in {'it' if orders == 1 else 'them'}" if orders else "no sums checked"
    reason = f"no order can be set, since {'; '.join(result.unknown)}" if result.unknown else ""
    line = status(f"{quantity(orders, 'order')} found", compared, code, reason)
    yield Status(state_of(code, bounded=code != 0), line)
    yield names(
        [
            ("function", f"{result.function.name} as {kind.name}, {kind.call}"),
            ("adds", kind.adds),
            ("run", f"n = {setup.n}, {name_of(setup.dtype)}; {result.probes} probes, {result.seconds:.1f} s"),
            ("machine", machine()),
            *(("rests on", line) for line in result.function.rests_on()),
        ]
    )
    rows = [(name if i == 0 else "", line) for name, tree in result.trees.items() for i, line in enumerate(_tree(tree))]
    yield group("Orders", names(rows))
    yield group("Where", lines(*_everywhere(result)))
    if kind.name == "all_reduce":
        yield lines("", f"shipped order maps that are this one: {', '.join(result.collectives) or 'none'}")


def _tree(tree: Tree) -> list[str]:
    if tree.order is None:
        return [f"no fixed tree: {tree.reason}"]
    order = str(tree.order)
    lines = [order if len(order) <= LONGEST else f"{order[:LONGEST]}... ({len(order)} characters; --out writes all)"]
    rounds = f"{_dtypes(tree)}; the sum{' ' * bool(tree.after)}{tree.after} is rounded to {tree.output}"
    lines.append(rounds if tree.accumulate else f"the sum is rounded to {tree.output or 'its output'}")
    if tree.products:
        narrow = f" to {tree.product}" if tree.product != "fp32" else ""
        lines.append(
            {
                "contracted": "products enter their additions unrounded (fma)",
                "rounded": f"products are rounded{narrow} before they are added (no fma)",
                "exact": "products are exact in the accumulator: fma or not makes no difference",
            }[tree.products]
        )
    if dict(tree.sites).get("square", "fp32") != "fp32":
        lines.append(f"squares are rounded to {dict(tree.sites)['square']} before they are added")
    return [*lines, _certainty(tree)]


def _dtypes(tree: Tree) -> str:
    bits = f", some of them to {' or '.join(map(str, tree.bits))} bits" if tree.bits else ""
    dtypes = {level.accumulate for level in tree.order.levels if level.accumulate} if tree.order else set()
    where = " where the level says nothing else" if dtypes else ""
    return f"additions round to {tree.accumulate}{where}{bits}"


def _certainty(tree: Tree) -> str:
    if not tree.replayed:
        return "the tree only: what else is done to the sum was not replayed"
    share = f"{tree.equal} of {tree.replayed}"
    if tree.equal == tree.replayed:
        return f"replayed bit for bit: {share} zero-sum sums"
    return (
        f"replayed bit for bit: only {share} zero-sum sums, so the tree is right where probes saw it, but its rounding "
        "is not fully known"
    )


def _everywhere(result: Result) -> list[str]:
    """A line for setups that differ in M only, or in alignment only, and have the same classes at the same places."""
    kind, setups = result.function.kind.name, [setup for setup, _, _ in result.places]
    by_alignment = len({setup.m for setup in setups}) == 1 < len({setup.offset for setup in setups})
    rows: dict[tuple[Setup, str], list[int]] = {}
    for setup, places, reason in result.places:
        key, number = (replace(setup, offset=0), setup.offset) if by_alignment else (replace(setup, m=0), setup.m)
        rows.setdefault((key, _places(places, reason)), []).append(number)
    lines = []
    for (setup, where), numbers in rows.items():
        if by_alignment:
            words = f"{setup_text(kind, setup)}, {_alignment(numbers)}"
        else:
            words = setup_text(kind, replace(setup, m=numbers[0])).replace(f"M = {numbers[0]}", f"M = {runs(numbers)}")
        lines.append(f"{words}: {where}")
    return lines


def setup_text(kind: str, setup: Setup) -> str:
    """A setup in words, with the letters of the kind's call."""
    words = [] if kind in {"dot", "all_reduce"} else [f"M = {setup.m}"]
    words += [f"{_WIDTH[kind]} = {setup.width}"] if kind in _WIDTH else []
    words += [f"{setup.threads} thread{'s' * (setup.threads != 1)}"] if setup.threads is not None else []
    words += [_alignment([setup.offset])] if setup.offset else []
    return ", ".join(words) or "as called"


def _alignment(offsets: Sequence[int]) -> str:
    """Where arguments start."""
    if list(offsets) == [0]:
        return "arguments at multiples of 64 bytes"
    return f"arguments {runs(offsets)} element{'s' * (list(offsets) != [1])} past multiples of 64 bytes"


def _places(places: Sequence[OutputPlace], reason: str) -> str:
    if reason:
        return f"no fixed tree: {reason}"
    return "; ".join(f"{place.label}: {place.name}" for place in places)


def certified(function: Function, claim: Claim, verdicts: Sequence[ClassVerdict], coverage: str) -> Document:
    """The report of a certification: whether a function adds as claimed, with a line for each class of outputs."""
    blocks = tuple(_certified(function, claim, verdicts, coverage))
    return Document(command="kernel certify", subject=f"{function.name} {claim.text}", blocks=blocks)


def _certified(function: Function, claim: Claim, verdicts: Sequence[ClassVerdict], coverage: str) -> Iterator[Block]:
    rounds = f", additions rounded to {claim.accumulate}" if claim.order is not None else ""
    if function.kind.products and claim.product not in {None, "", "fp32"}:
        rounds += f", {'products' if function.kind.signed else 'squares'} to {claim.product}"
    yield certification(all(v.holds for v in verdicts), f"{function.name} against {claim.text}{rounds}")
    yield lines(machine(), *function.rests_on(), *_stated(claim, verdicts))
    yield group("Outputs", lines(*(_outcome(function.kind.name, verdict) for verdict in verdicts)))
    yield group("Covered", lines(coverage))


def certification(holds: bool, claim: str) -> Status:
    """The status: certified or not."""
    code = 0 if holds else 1
    return Status(state_of(code), f"{'certified' if holds else 'not certified'}: {claim}; exit {code}")


def _outcome(kind: str, verdict: ClassVerdict) -> str:
    """One class of outputs in words: how many have the same bits, and which tree they have."""
    words = []
    if verdict.replayed:
        words.append(f"{verdict.equal} of {verdict.replayed} outputs have the same bits")
    if verdict.same_tree is not None:
        words.append(
            "the tree is this one" if verdict.same_tree else f"the tree is another: {_shortened(verdict.order)}"
        )
    words += [verdict.first] if verdict.first else []
    words += [f"the bits are those of {_shortened(verdict.gives)}"] if verdict.gives else []
    place = setup_text(kind, verdict.setup) + (f", {verdict.label}" if verdict.label != "all" else "")
    return f"{place}: {f'no fixed tree: {verdict.reason}' if verdict.reason else '; '.join(words)}"


def _stated(claim: Claim, verdicts: Sequence[ClassVerdict]) -> list[str]:
    """The orders that a node or a launch rule stands for, each with the numbers of rows for which it does."""
    rows: dict[str, list[int]] = {}
    is_named = claim.order is not None and (claim.order in RULES or claim.order != claim.text)
    for verdict in verdicts if is_named else []:
        rows.setdefault(str(claim.order_at(verdict.setup)), []).append(verdict.setup.m)
    name = f"{claim.order}, " if claim.order in RULES else ""
    return [f"{name}M = {runs(numbers)}: {_shortened(order)}" for order, numbers in rows.items()]


def _shortened(order: str) -> str:
    return order if len(order) <= LONGEST else f"{order[:LONGEST]}... ({len(order)} characters)"
