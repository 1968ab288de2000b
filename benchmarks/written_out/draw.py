"""Recipes drawn by seed: values on random nodes of both sides, conditional ones also where they rest."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeparity.ops.attribute import Attribute
from moeparity.plan.graph import Graph, Node

BASES = ("hf-eager", "hf-default", "flashinfer-add-norm", "vllm", "sglang", "megatron")
NUMBERS = {"eps": (1e-5, 1e-3), "offset": (0.0, 0.1), "renormalize_eps": (1e-2, 0.05), "temperature": (0.7, 1.5)}
ORDERS = ("sequential", "reverse", "lanes(2) | sequential")
FUSED = {
    "name": "drawn_add_norm",
    "chain": ["add", "rms_norm"],
    "set": {"add:output->rms_norm": "fp32", "rms_norm:normalized": "fp32", "rms_norm:output": "fp16"},
}
KERNELS = '''
def halves(x, *, node):
    """What a norm hands on, computed otherwise: rounded, and with another eps."""
    y = x.float()
    return (y * (y.square().mean(-1, keepdim=True) + 1e-2).rsqrt()).to(x.dtype)
'''
SEQUENCES = 4


def write(folder: Path, checkpoint: Path, tokens: Path, graph: Graph, seed: int) -> Path:
    """A recipe with its profiles and kernels; the same seed gives the same files."""
    draw = random.Random(seed)  # noqa: S311
    kernels = f"kernels_{seed}"
    (folder / f"{kernels}.py").write_text(KERNELS, "utf-8")
    sides = {side: _side(draw, folder, side, graph) for side in ("reference", "candidate")}
    if draw.random() < 0.25:
        norm = draw.choice([node for node in graph.nodes if node.name.endswith((".norm", "norm"))]).name
        sides[draw.choice(("reference", "candidate"))]["impl"] = [{"nodes": [norm], "call": f"{kernels}:halves"}]
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": str(tokens), "sampled_from": "candidate"},
        **sides,
        "gate": {"metric": "k3", "below": 1e-4},
        # A recipe has no word for a part of a dtype.
        "split": 0 if any("dtype" in side for side in sides.values()) else draw.choice((0, 1, 2)),
        "swap": draw.sample(("layers[*].moe", "layers[0]", "layers[*].attention", "**.norm"), draw.choice((0, 1))),
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1), "utf-8")
    return path


def _side(draw: random.Random, folder: Path, side: str, graph: Graph) -> dict[str, Any]:
    base = draw.choice(BASES)
    profile: dict[str, Any] = {"kind": "profile", "name": f"drawn-{side}", "extends": base}
    if draw.random() < 0.3:
        profile["fusions"] = [FUSED]
    ops = sorted({node.op.name for node in graph.nodes if node.attributes})
    rules: dict[str, dict[str, Any]] = {}
    for op in draw.sample(ops, 2):
        node = draw.choice([node for node in graph.nodes if node.op.name == op])
        rules[op] = dict(_values(draw, node, graph))
    profile["rules"] = [{"op": op, "set": values} for op, values in rules.items() if values]
    (folder / f"{side}.yaml").write_text(json.dumps(profile), "utf-8")
    result: dict[str, Any] = {"profile": f"./{side}.yaml", "micro_batch": draw.choice((2, 2, 4, 1))}
    result["set"] = _lines(draw, graph)
    if draw.random() < 0.2:
        result["dtype"] = draw.choice(("fp32", "fp16"))
    if draw.random() < 0.3:
        result["placement"] = {"tensor": 2}
    return result


def _lines(draw: random.Random, graph: Graph) -> dict[str, Any]:
    """A recipe's own lines; no two of them speak of the same attribute of the same kind of node."""
    lines: dict[str, Any] = {}
    roles: set[str] = set()
    for _ in range(draw.randint(2, 4)):
        node = draw.choice([node for node in graph.nodes if node.attributes])
        selector = node.name.replace(f"layers[{node.layer}]", f"layers[{_indices(draw, node, graph)}]")
        role = node.name.replace(f"layers[{node.layer}]", "")
        if role not in roles:
            lines |= {f"{selector}:{name}": value for name, value in _values(draw, node, graph)}
            roles.add(role)
    return lines


def _indices(draw: random.Random, node: Node, graph: Graph) -> str:
    return draw.choice(("*", "*", "0:2", f"{node.layer}", f"{graph.layers - 1}"))


def _values(draw: random.Random, node: Node, graph: Graph) -> Iterator[tuple[str, Any]]:
    """Some attributes of a node, at least one of them conditional where it has any."""
    # Activations in 8 bits come in groups of 128, which do not divide these models' rows.
    left_out = ("blocks", "activations")
    free = [a for a in node.attributes if a.kind != "placement" and a.name not in left_out]
    conditional = [a for a in free if a.when or a.needs != "always"]
    parents = [a for a in free if any(a.name in child.when for child in conditional)]
    chosen = {
        a.name: a
        for pool in (conditional, parents, free)
        for a in draw.sample(pool, min(len(pool), draw.choice((0, 1, 1, 2))))
    }
    for attribute in chosen.values():
        yield attribute.name, _value(draw, attribute)
    readers = [reader for reader in graph.nodes if node.name in reader.inputs]
    if readers and any(a.edge for a in free) and draw.random() < 0.2:
        site = next(a for a in free if a.edge)
        yield f"{site.name}->{draw.choice(readers).op.name}", draw.choice(("fp32", "fp16", "stored"))


def _value(draw: random.Random, attribute: Attribute) -> Any:
    if attribute.name in NUMBERS:
        return draw.choice(NUMBERS[attribute.name])
    words: list[Any] = [word for word in attribute.values if word != "fp64"] + list(ORDERS if attribute.order else ())
    words += [] if attribute.least is None else [attribute.least, 1, 2, 4]
    return draw.choice(words or [attribute.default])
