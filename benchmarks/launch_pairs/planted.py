"""One difference for each case, of twelve kinds, which the candidate gets on top of its launch file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.launch_pairs.checkpoints import EXPERTS
from benchmarks.launch_pairs.pairs import MODELS, Case

PROMPTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A difference: what it is in words, the toggle that it makes, and what a recipe's candidate says for it."""

    says: str
    toggle: str
    faults: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = tuple(MODELS)


def _fault(says: str, name: str, models: tuple[str, ...] = tuple(MODELS), **further: Any) -> Plant:
    return Plant(says=says, toggle=f"fault {name}", faults=({"name": name, **further},), models=models)


def _setting(says: str, address: str, value: float) -> Plant:
    return Plant(says=says, toggle=address, settings={address: value})


PLANTS: Final = (
    _setting("temperature 0.5", "log_probs:temperature", 0.5),
    _setting("eps 0.5 in the layers' norms", "layers[*].*.norm:eps", 0.5),
    _fault("gate and up of the experts exchanged", "gate-and-up-exchanged"),
    _fault("top-k weights not renormalised", "renormalisation"),
    _fault("rope's base 10 in place of 10,000", "rope-base", values={"base": 10.0}),
    _fault("the attention's result not added in layer 1", "residual-missing", nodes="layers[1].attention.residual"),
    _fault("experts in another order", "experts-permuted", values={"order": [*range(1, EXPERTS), 0]}),
    _fault("the last norm left out", "norm-missing", nodes="norm"),
    _fault("the softmax scale 4 times as large", "softmax-scale", values={"factor": 4.0}),
    _fault("keys not normalised", "qk-norm-missing", ("qwen3_moe",), nodes="layers[*].attention.k_norm"),
    _fault("the shared expert left out", "shared-expert-missing", ("deepseek_v3",)),
    _fault("the routed sum scaled by 1 in place of 2.5", "routed-scaling", ("deepseek_v3",), values={"scale": 1.0}),
)


def plant_of(case: Case) -> Plant:
    """The plant of a case: all kinds come in turn."""
    fitting = [plant for plant in PLANTS if case.model in plant.models]
    return fitting[(case.number // len(MODELS)) % len(fitting)]


def write(plant: Plant, recipe: Path) -> None:
    """Write the plant into a recipe as `init` left it, and keep a few of its prompts."""
    content = yaml.safe_load(recipe.read_text("utf-8"))
    candidate = content["candidate"]
    if plant.settings:
        candidate["set"] = {**candidate.get("set", {}), **plant.settings}
    if plant.faults:
        candidate["faults"] = [*candidate.get("faults", []), *map(dict, plant.faults)]
    recipe.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
    tokens = recipe.parent / content["tokens"]["file"]
    tokens.write_text("".join(tokens.read_text("utf-8").splitlines(keepends=True)[:PROMPTS]), "utf-8")
