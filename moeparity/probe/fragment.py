"""Writes the orders that a probe found as a YAML fragment for a profile."""

from __future__ import annotations

import json
from dataclasses import replace

from moeparity.numerics.orders import Order
from moeparity.probe.find import Result, Tree
from moeparity.probe.show import machine, setup_text

OPS = ("linear", "combine", "rms_norm", "all_reduce")
"""Kinds that are ops, whose attributes can be set. For other kinds the orders are values for any order attribute."""


def fragment(result: Result) -> str:
    """A profile's `rules:` with the order of most outputs, and the others as comments; for a collective its name.

    Every class of outputs must have an order that replays.
    """
    kind = result.function.kind.name
    outputs = dict.fromkeys(result.trees, 0)
    for _, places, _ in result.places:
        for place in places:
            outputs[place.name] += len(place.positions)
    names = sorted(outputs, key=lambda name: -outputs[name])
    lines = [f"# moeparity kernel probe {result.function.name} --kind {kind}: {machine()}"]
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
    source = _quote(f"moeparity kernel probe {result.function.name}, {evidence}, {machine()}")
    level = _quote("verified: ptx") if compiled else "verified"
    return [
        "rules:",
        f"  - op: {result.function.kind.name}",
        f"    set: {{{values}}}",
        f"    evidence: {{level: {level}, source: {source}}}",
    ]


def _settings(kind: str, tree: Tree) -> dict[str, str]:
    """Attributes of the op. If it has no `accumulate`, the levels of the order state the dtype."""
    assert tree.order is not None
    if kind == "combine":
        sites = {"weighted": tree.product or "fp32", "accumulate": tree.accumulate, "output": tree.output}
        return {"order": str(tree.order), **sites}
    if kind == "all_reduce":
        return {"order": str(tree.order), "accumulate": tree.accumulate}
    return {"order": str(_with_dtype(tree.order, tree.accumulate)), **dict(tree.sites)}


def _with_dtype(order: Order, accumulate: str) -> Order:
    """The order with the dtype of its additions at each level, unless that is fp32."""
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
