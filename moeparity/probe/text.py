"""What a probe found, as text for a terminal and as a YAML fragment for a profile."""

from __future__ import annotations

import json
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import torch

from moeparity.numerics.dtypes import name_of
from moeparity.numerics.orders import Order
from moeparity.ops.norm.reductions import RULES
from moeparity.probe.calls import Setup, runs
from moeparity.probe.certify import Claim, Verdict
from moeparity.probe.find import Place, Result, Tree
from moeparity.probe.target import Function

LONGEST = 300
"""Characters of an order that a terminal is given."""

COLUMNS = 100
"""Width of running text."""
_WIDTH = {"linear": "N", "combine": "H", "all_reduce": "E"}


def machine() -> str:
    """Machine, torch and date, as a figure needs them."""
    cpu = next((line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), "")
    today = datetime.now(UTC).date().isoformat()
    return f"{today}, {cpu or platform.machine()}, torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            return file.read(4096).splitlines()
    except OSError:
        return []


def report_text(result: Result) -> str:
    """The trees, and where each is."""
    setup, kind = result.places[0][0], result.function.kind
    lines = [
        f"{result.function.name} as {kind.name}, {kind.call}",
        f"adds {kind.adds}",
        f"n = {setup.n}, {name_of(setup.dtype)}; {result.probes} probes, {result.seconds:.1f} s",
        machine(),
        *result.function.rests_on(),
        "",
    ]
    for name, tree in result.trees.items():
        lines += [f"{name:3} {line}" if i == 0 else f"    {line}" for i, line in enumerate(_tree(tree))]
    lines += ["", "where"]
    lines += [f"    {words}" for words in _everywhere(result)]
    if result.unknown:
        lines += ["", f"There is no order to set: {'; '.join(result.unknown)}."]
    if result.function.kind.name == "all_reduce":
        lines += ["", f"shipped order maps that are this one: {', '.join(result.collectives) or 'none'}"]
    return "\n".join(lines)


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
    bits = f", others to {', '.join(map(str, tree.bits))} bits" if tree.bits else ""
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
        f"replayed {share} zero-sum sums only: the tree is right where probes saw it, its arithmetic is not all known"
    )


def _everywhere(result: Result) -> list[str]:
    """A line for all setups with the same classes at the same places that differ in M only, or in alignment only."""
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


def _places(places: Sequence[Place], reason: str) -> str:
    if reason:
        return f"no fixed tree: {reason}"
    return "; ".join(f"{place.label}: {place.name}" for place in places)


def verdict_text(function: Function, claim: Claim, verdicts: Sequence[Verdict], coverage: str) -> str:
    """The verdict of `certify`, a line for each class of outputs."""
    rounds = f", additions rounded to {claim.accumulate}" if claim.order is not None else ""
    if function.kind.products and claim.product not in {None, "", "fp32"}:
        rounds += f", {'products' if function.kind.signed else 'squares'} to {claim.product}"
    holds = all(verdict.holds for verdict in verdicts)
    lines = [
        f"{'certified' if holds else 'NOT certified'}: {function.name} against {claim.text}{rounds}",
        machine(),
        *function.rests_on(),
        *_stated(claim, verdicts),
        "",
    ]
    kind = function.kind.name
    for verdict in verdicts:
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
        lines.append(f"{place}: {f'no fixed tree: {verdict.reason}' if verdict.reason else '; '.join(words)}")
    return "\n".join([*lines, "", *textwrap.wrap(coverage, COLUMNS, break_long_words=False)])


def _stated(claim: Claim, verdicts: Sequence[Verdict]) -> list[str]:
    """What a node or a launch rule comes to, for each order the numbers of rows that have it."""
    rows: dict[str, list[int]] = {}
    is_named = claim.order is not None and (claim.order in RULES or claim.order != claim.text)
    for verdict in verdicts if is_named else []:
        rows.setdefault(str(claim.order_at(verdict.setup)), []).append(verdict.setup.m)
    name = f"{claim.order}, " if claim.order in RULES else ""
    return [f"{name}M = {runs(numbers)}: {_shortened(order)}" for order, numbers in rows.items()]


def _shortened(order: str) -> str:
    return order if len(order) <= LONGEST else f"{order[:LONGEST]}... ({len(order)} characters)"


OPS = ("linear", "combine", "rms_norm", "all_reduce")
"""Kinds that are ops, whose attributes are set; the orders of the others are values for any order attribute."""


def fragment(result: Result) -> str:
    """A profile's `rules:` with the order of most outputs, and the others as comments; for a collective its name.

    Every class of outputs has an order that replays.
    """
    kind = result.function.kind.name
    outputs = dict.fromkeys(result.trees, 0)
    for _, places, _ in result.places:
        for place in places:
            outputs[place.name] += len(place.positions)
    names = sorted(outputs, key=lambda name: -outputs[name])
    lines = [f"# moeparity probe {result.function.name} --kind {kind}: {machine()}"]
    lines += [f"# {name}: {'; '.join(_setups(result, name))}" for name in names]
    if result.collectives:
        lines += _rule(result, result.trees[names[0]], {"collective": result.collectives[0]})
    for i, name in enumerate([] if result.collectives else names):
        tree = result.trees[name]
        rule = _rule(result, tree, _settings(kind, tree)) if kind in OPS else [f"order: {_quote(str(tree.order))}"]
        unsaid = kind != "combine" and tree.products == "rounded" and tree.product != "fp32"
        lines += [
            f"# {name}",
            *([f"# products are rounded to {tree.product}, which no attribute says"] if unsaid else []),
        ]
        lines += rule if i == 0 and not unsaid else [f"# {line}" for line in rule]
    return "\n".join(lines)


def _rule(result: Result, tree: Tree, settings: dict[str, str]) -> list[str]:
    values = ", ".join(f"{name}: {_quote(value)}" for name, value in settings.items())
    compiled = result.function.rests_on()
    evidence = "; ".join((f"{tree.equal} of {tree.replayed} zero-sum sums", *compiled))
    source = _quote(f"moeparity probe {result.function.name}, {evidence}, {machine()}")
    level = _quote("verified: ptx") if compiled else "verified"
    return [
        "rules:",
        f"  - op: {result.function.kind.name}",
        f"    set: {{{values}}}",
        f"    evidence: {{level: {level}, source: {source}}}",
    ]


def _settings(kind: str, tree: Tree) -> dict[str, str]:
    """Attributes of the op; ops without an `accumulate` get the dtype at the levels of the order."""
    assert tree.order is not None
    if kind == "combine":
        sites = {"weighted": tree.product or "fp32", "accumulate": tree.accumulate, "output": tree.output}
        return {"order": str(tree.order), **sites}
    if kind == "all_reduce":
        return {"order": str(tree.order), "accumulate": tree.accumulate}
    return {"order": str(_with_dtype(tree.order, tree.accumulate)), **dict(tree.sites)}


def _with_dtype(order: Order, accumulate: str) -> Order:
    """The order with the dtype of its additions at each level, where that is not fp32."""
    if accumulate in {"", "fp32"}:
        return order
    return Order(tuple(replace(level, accumulate=level.accumulate or accumulate) for level in order.levels))


def _setups(result: Result, name: str) -> list[str]:
    kind = result.function.kind.name
    return [
        f"{setup_text(kind, setup)}, {place.label}"
        for setup, places, _ in result.places
        for place in places
        if place.name == name
    ]


def _quote(text: str) -> str:
    return json.dumps(text)
