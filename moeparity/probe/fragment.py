"""What a probe found, as a YAML fragment for a profile."""

from __future__ import annotations

import json
from dataclasses import replace

from moeparity.numerics.orders import Order
from moeparity.probe.find import Result, Tree
from moeparity.probe.text import machine, setup_text

OPS = ("linear", "combine", "rms_norm", "all_reduce")
"""Kinds that are ops, whose attributes are set; the orders of the others are values for any order attribute."""

_OWN_DTYPE = ("combine", "all_reduce")


def fragment(result: Result) -> str:
    """A profile's `rules:` with the order of most outputs, and the others as comments; for a collective its name."""
    kind = result.function.kind.name
    outputs = dict.fromkeys(result.trees, 0)
    for _, places, _ in result.places:
        for place in places:
            outputs[place.name] += len(place.positions)
    names = sorted(outputs, key=lambda name: -outputs[name])
    lines = [f"# moeparity probe {result.function.name} --kind {kind}: {machine()}"]
    lines += [f"# {name}: {'; '.join(_places(result, name))}" for name in names]
    lines += [f"# {setup_text(kind, setup)}: no fixed tree: {reason}" for setup, _, reason in result.places if reason]
    with_order = [name for name in names if result.trees[name].order is not None]
    if result.collectives:
        lines += _rule(result, result.trees[names[0]], {"collective": result.collectives[0]})
    elif not with_order:
        lines.append("# There is no order to set.")
    for i, name in enumerate([] if result.collectives else with_order):
        tree = result.trees[name]
        rule = _rule(result, tree, _settings(kind, tree)) if kind in OPS else [f"order: {_quoted(str(tree.order))}"]
        lines += [f"# {name}", *(rule if i == 0 else [f"# {line}" for line in rule])]
    return "\n".join(lines)


def _rule(result: Result, tree: Tree, settings: dict[str, str]) -> list[str]:
    values = ", ".join(f"{name}: {_quoted(value)}" for name, value in settings.items())
    level = "verified" if tree.replayed and tree.equal == tree.replayed else "inferred"
    evidence = f"{tree.equal} of {tree.replayed} zero-sum sums" if tree.replayed else "tree only"
    source = _quoted(f"moeparity probe {result.function.name}, {evidence}, {machine()}")
    return [
        "rules:",
        f"  - op: {result.function.kind.name}",
        f"    set: {{{values}}}",
        f"    evidence: {{level: {level}, source: {source}}}",
    ]


def _settings(kind: str, tree: Tree) -> dict[str, str]:
    """Attributes of the op; ops without an `accumulate` get the dtype at the levels of the order."""
    assert tree.order is not None
    if kind in _OWN_DTYPE:
        return {"order": str(tree.order), "accumulate": tree.accumulate}
    return {"order": str(_with_dtype(tree.order, tree.accumulate)), **dict(tree.sites)}


def _with_dtype(order: Order, accumulate: str) -> Order:
    """The order with the dtype of its additions at each level, where that is not fp32."""
    if accumulate in {"", "fp32"}:
        return order
    return Order(tuple(replace(level, accumulate=level.accumulate or accumulate) for level in order.levels))


def _places(result: Result, name: str) -> list[str]:
    kind = result.function.kind.name
    return [
        f"{setup_text(kind, setup)}, {place.label}"
        for setup, places, _ in result.places
        for place in places
        if place.name == name
    ]


def _quoted(text: str) -> str:
    return json.dumps(text)
