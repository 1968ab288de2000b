"""The hidden suite: moeparity against a transformers model that was patched where no profile says so."""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.planted import checkpoints, submodules
from benchmarks.planted.patches import PATCHES, ROOT, Patch
from benchmarks.planted.submodules import HEADED, IMPL, SHARED
from moeparity.nearest import nearest
from moeparity.pipeline import passes
from moeparity.plan import Options
from moeparity.summary.summarise import summarise

FAMILIES = ("qwen3_moe", "mixtral", "qwen2_moe")
LAYERS, SEQUENCES, TOKENS = 2, 32, 24
NORMS = {
    "attention.norm": "input_layernorm",
    "moe.norm": "post_attention_layernorm",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
}
LINEARS = {f"attention.{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"}
MODULES = {
    "rope": "self_attn",
    "attend": "self_attn",
    "router": "mlp.gate",
    "experts": "mlp.experts",
    "shared": "mlp.shared_expert",
}


@dataclass(frozen=True, slots=True)
class Hidden:
    """One case: a patch, the module it is in, and the node at which moeparity's graph has that; None: a clean pair."""

    number: int
    family: str
    patch: Patch | None
    module: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What moeparity says. `named` are the choices that give every bit; `nearest` is the best."""

    acts: bool
    status: str
    roots: tuple[str, ...]
    named: tuple[str, ...]
    nearest: str
    equal: float
    tried: int
    seconds: float
    bytes: int

    def right_node(self, case: Hidden) -> bool:
        """The first root is the patched node; in a clean pair there is none."""
        return self.roots[:1] == ((case.node,) if case.patch else ())

    def right_name(self, case: Hidden) -> bool:
        """One of the names is an answer, or there is none where the vocabulary has no word."""
        answers = case.patch.answers if case.patch else ()
        said = {choice.partition(":")[2] for one in self.named for choice in one.split(" with ")}
        return bool(said.intersection(answers)) if answers else not self.named


def cases(count: int) -> list[Hidden]:
    """So many cases: every patch in turn, at places and families drawn from a seed, and a clean pair in fifteen."""
    found: list[Hidden] = []
    number = 0
    while len(found) < count:
        if number % 15 == 14:
            found.append(Hidden(number, FAMILIES[number // 15 % 3], None, "", ""))
        else:
            patch = PATCHES[(number - number // 15) % len(PATCHES)]
            found.append(_placed(number, patch))
        number += 1
    return found


def _placed(number: int, patch: Patch) -> Hidden:
    rng = random.Random(f"hidden {number}")  # noqa: S311 - a reproducible draw
    family, layer = rng.choice(patch.families), rng.randrange(LAYERS)
    if patch.site == "head":
        return Hidden(number, family, patch, "lm_head", "lm_head")
    if patch.site in {"norm", "linear"}:
        places = dict(NORMS if patch.site == "norm" else LINEARS)
        if family != "qwen3_moe":
            places = {node: module for node, module in places.items() if module.rpartition(".")[2] not in NORM_OF_HEADS}
        choice = rng.choice([*places, "norm"] if patch.site == "norm" else list(places))
        if choice == "norm":
            return Hidden(number, family, patch, "model.norm", "norm")
        return Hidden(number, family, patch, f"model.layers.{layer}.{places[choice]}", f"layers[{layer}].{choice}")
    module = f"model.layers.{layer}.{MODULES[patch.site]}"
    return Hidden(number, family, patch, module, f"layers[{layer}].{ROOT[patch.site]}")


NORM_OF_HEADS = frozenset({"q_norm", "k_norm"})


def write(case: Hidden, folder: Path) -> Path:
    """Checkpoint, tokens sampled at random, and the recipe whose candidate is the patched model, node by node."""
    checkpoints.write(folder / "checkpoint", case.family, seed=case.number, layers=LAYERS, dtype="bfloat16", damped=0.5)
    generator = torch.Generator().manual_seed(case.number)
    ids = torch.randint(0, checkpoints.FAMILIES[case.family]["vocab_size"], (SEQUENCES, TOKENS), generator=generator)
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    skipped = (*(() if case.family == "qwen2_moe" else SHARED), *(() if case.family == "qwen3_moe" else HEADED))
    impl = [
        {"nodes": nodes.split(), "call": f"benchmarks.planted.submodules:{name}"}
        for nodes, name in IMPL.items()
        if name not in skipped
    ]
    side: dict[str, Any] = {"profile": "hf-eager", "micro_batch": SEQUENCES}
    recipe = {
        "kind": "recipe",
        "checkpoint": "checkpoint",
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": side,
        "candidate": {**side, "impl": impl},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1), "utf-8")
    return path


def ask(case: Hidden, folder: Path) -> Answer:
    """Run moeparity on a case: bisect, then ask what the function at the first root is nearest to."""
    path = write(case, folder)
    model = submodules.use(folder / "checkpoint", case.patch, case.module)
    del model
    started = time.process_time()
    plan, observed = passes(path, device="cpu", options=Options(allow_code=True, memory_limit=float("inf")))[:2]
    report = summarise(plan, observed)
    roots = tuple(root.node for root in report.roots)
    found = nearest(plan, roots[0]) if roots else None
    best = found.found[0] if found and found.found else None
    return Answer(
        acts=report.verdict.reason != "all bits are equal",
        status=report.verdict.status,
        roots=roots,
        named=tuple(str(one) for one in found.found) if found and found.in_vocabulary else (),
        nearest=str(best) if best else "",
        equal=best.equal if best else 1.0,
        tried=found.tried if found else 0,
        seconds=time.process_time() - started,
        bytes=len(json.dumps(asdict(report), default=str)),
    )
