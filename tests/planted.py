"""Recipes with one planted value: a node's attribute on the candidate's side, everything else the same on both."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from moeparity.errors import Where
from moeparity.graph.bind import BoundGraph, attributes_of, bind
from moeparity.graph.graph import Node
from moeparity.graph.profile import load_profile
from moeparity.model import Model
from moeparity.observation import Observed, observe
from moeparity.ops.declaration import Attribute, Op, Value
from moeparity.ops.registry import OPS
from moeparity.plan import Plan, prepare
from moeparity.report.model import Report
from moeparity.summary.summarise import summarise

PROFILE = "hf-eager"
SEQUENCES, TOKENS = 4, 48

MODEL_OF = {
    "mla": "deepseek_v3",
    "swiglu": "deepseek_v3",
    "sigmoid_gate": "qwen2_moe",
    "clamp": "olmoe_clip",
    # With rows of 37 elements, fp32 and at most three of them, a GEMM of 74 columns and two of 37 differ.
    "experts:gate_up": "qwen3_moe_odd",
    # With grouped queries the keys are copied anyway.
    "attention:kv_layout": "qwen3_moe_mha",
}
"""Op or attribute -> fixture, where it is not qwen3_moe."""

SHORT = {"experts:gate_up": (8, 4, 1), "attention:kv_layout": (3, 7, 3)}
"""Attribute -> sequences, tokens and micro-batch, where it matters for small shapes only."""

NUMBERS: dict[str, float] = {"rms_norm:eps": 1e-3, "router:renormalize_eps": 1e-2}
"""What is planted where any number is allowed."""

ORDERS: dict[str, tuple[str, ...]] = {
    "combine:order": (
        "rotate(1, 1)",
        "rotate(-1, -1)",
        "fold_hi(skip)",
        "blocks(2) | sequential",
        "lanes(2) | sequential",
        "threads(2, vector=2, accumulate=fp32, round=bf16) | reverse",
        "sequential(kahan)",
        "sequential(fma)",
        "fused(2)",
        "tree(0+3+(1+2))",
        "tree([0+1+2+3])",
        "cascade",
        "unordered(1)",
    ),
}
"""Orders written out, planted beside the words where any order is allowed."""

BACKGROUND: dict[str, dict[str, Value]] = {
    # In bf16 the two associations differ in one of some ten thousand elements; without the last rounding in half.
    "rms_norm:association": {"normalized": "fp32", "output": "fp32"},
    "router:renormalize": {"weights": "fp32"},
    # fp32 and fp64 scores give the same bf16 weights.
    "router:scores": {"weights": "fp32"},
    # In bf16 torch has no sum of its own, and `native` is `sequential`.
    "combine:order=native": {"weighted": "fp32", "accumulate": "fp32", "output": "fp32"},
    # An fma is one of two fp32 operations.
    "combine:order=sequential(fma)": {"weighted": "fp32", "accumulate": "fp32", "output": "fp32"},
    "experts:implementation": {"projections": "fp32", "product": "fp32", "output": "fp32"},
    "experts:gate_up": {"projections": "fp32", "product": "fp32", "output": "fp32"},
    "attention:kv_layout": {"scores": "fp32", "probabilities": "fp32", "output": "fp32"},
}
"""Values both sides have on the node, beyond those the attribute's `when` asks for."""

REFERENCE_VALUE: dict[str, Value] = {
    "combine:order=native": "reverse",
    # Of four rows it is sequential.
    "combine:order=cascade": "reverse",
}
"""What the reference has where the profile's value will not do."""

FED_FP32 = ("linear:inputs", "gate:inputs", "lm_head:inputs", "combine:order=sequential(fma)")
"""What rounds what comes in, or its products: both sides give their node fp32, as bf16 fits into every other dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One value of one attribute, to be planted."""

    op: Op
    attribute: Attribute
    value: Value

    @property
    def label(self) -> str:
        return f"{self.place}={self.value}"

    @property
    def place(self) -> str:
        return f"{self.op.name}:{self.attribute.name}"

    @property
    def model(self) -> str:
        return MODEL_OF.get(self.place, MODEL_OF.get(self.op.name, "qwen3_moe"))


def all_values() -> list[Planted]:
    """Every value of every attribute of every op."""
    return [
        Planted(op=op, attribute=attribute, value=value)
        for op in OPS.values()
        for attribute in op.attributes
        for value in values_of(op, attribute)
    ]


def values_of(op: Op, attribute: Attribute) -> list[Value]:
    """The words allowed, and the listed number or orders where any are."""
    place = f"{op.name}:{attribute.name}"
    number = [NUMBERS[place]] if attribute.number else []
    return [*attribute.values, *number, *(ORDERS[place] if attribute.order else ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The node a value was planted on, what each side has there, and what both set."""

    node: str
    reference: Value
    candidate: Value
    sets: tuple[dict[str, Value], dict[str, Value]]


def plant(planted: Planted, model: Model) -> Sides:
    """Which node, by a seeded draw, and what each side sets there."""
    base = bind(model.graph, load_profile(PROFILE, Where(Path(__file__))), model.dtype)
    node = random.Random(planted.label).choice(_nodes(planted, model))  # noqa: S311
    asked: dict[str, Value] = {name: allowed[0] for name, allowed in planted.attribute.when.items()}
    asked |= BACKGROUND.get(planted.label, BACKGROUND.get(planted.place, {}))
    both = {f"{node.name}:{name}": value for name, value in asked.items()}
    both |= {f"{node.inputs[0]}:output": "fp32"} if {planted.place, planted.label} & {*FED_FP32} else {}
    address = f"{node.name}:{planted.attribute.name}"
    reference = REFERENCE_VALUE.get(planted.label, _other(planted, base, node))
    own = {} if reference == base.settings[node.name, planted.attribute.name].value else {address: reference}
    return Sides(
        node=node.name,
        reference=reference,
        candidate=planted.value,
        sets=({**both, **own}, {**both, address: planted.value}),
    )


def _nodes(planted: Planted, model: Model) -> list[Node]:
    return [n for n in model.graph.nodes if n.op is planted.op and planted.attribute in attributes_of(n)]


def _other(planted: Planted, base: BoundGraph, node: Node) -> Value:
    """The profile's value where it is another one, else a value that is."""
    usual = base.settings[node.name, planted.attribute.name].value
    for value in (usual, *reversed(values_of(planted.op, planted.attribute))):
        if base.resolved(node.name, value) != base.resolved(node.name, planted.value):
            return value
    raise AssertionError(f"{planted.place} has one value only; list a number")


def write_recipe(
    folder: Path,
    checkpoint: Path,
    tokens: Mapping[str, torch.Tensor],
    reference: Mapping[str, object],
    candidate: Mapping[str, object],
    *,
    sampled_from: str = "candidate",
    below: float = 1e-4,
    reduce: str = "token",
    floor: bool = False,
    oracle: bool = False,
) -> Path:
    """A recipe with its token file; JSON is YAML."""
    save_file(dict(tokens), folder / "tokens.safetensors")
    recipe = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": "tokens.safetensors", "sampled_from": sampled_from},
        "reference": {"profile": PROFILE, **reference},
        "candidate": {"profile": PROFILE, **candidate},
        "gate": {"metric": "k3", "below": below, "reduce": reduce},
        "floor": floor,
        "oracle": oracle,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1), "utf-8")
    return path


def random_tokens(sequences: int = SEQUENCES, tokens: int = TOKENS, *, vocab: int = 512, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, vocab, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


@dataclass(slots=True)
class Bisection:
    """A bisection, step by step."""

    plan: Plan
    observed: Observed
    report: Report


def bisected(path: Path) -> Bisection:
    """The steps of `moeparity.bisect`."""
    plan = prepare(path, device="cpu")
    observed = observe(plan, plan.toggles)
    return Bisection(plan=plan, observed=observed, report=summarise(plan, observed))
