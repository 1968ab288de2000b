"""The hidden suite: moeparity against a transformers model that was patched where no profile says so."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.planted import submodules
from benchmarks.planted.hidden_cases import SEQUENCES, Hidden, write
from benchmarks.planted.submodules import HEADED, IMPL, SHARED
from moeparity.bisection.measures import summarise
from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import passes_over, ready
from moeparity.bisection.study import Study
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.numerics.bits import same_bits
from moeparity.plan.sides import CANDIDATE, micro_batches

Name = Literal["right", "none", "another"]
"""What the names of a case are: right; not given though there is a word; or another one, which is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What moeparity says. `named` are the choices that give every bit; `nearest` is the best.

    faithful: node by node the candidate has the logits, bit for bit, of the patched model run as a whole. acts: some
    bit differs from the reference's.
    """

    faithful: bool
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
        """The patched node is the one root; in a clean pair there is none."""
        return self.roots == ((case.node,) if case.patch else ())

    def name(self, case: Hidden) -> Name:
        """Right where one of the names is an answer, with no choice beside it; or where none is given and the
        vocabulary has no word.
        """
        answers = {frozenset(answer.split(" with ")) for answer in (case.patch.answers if case.patch else ())}
        words = {frozenset(choice.partition(":")[2] for choice in match.split(" with ")) for match in self.named}
        if words & answers or not (words or answers):
            return "right"
        return "another" if words else "none"


def answer_of(data: dict[str, Any]) -> Answer:
    """The inverse of `asdict`."""
    return Answer(**{**data, "roots": tuple(data["roots"]), "named": tuple(data["named"])})


def write_recipe(case: Hidden, folder: Path) -> Path:
    """The recipe whose candidate is the patched model, node by node."""
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
    """Run moeparity on a case: bisect, and see what the function at the first root is nearest to."""
    write(case, folder)
    path = write_recipe(case, folder)
    model = submodules.use(folder / "checkpoint", case.patch, case.module)
    started = time.process_time()
    study, observed = passes_over(
        ready(path, device="cpu", options=Options(allow_code=True, memory_limit=float("inf"))), None
    )[:2]
    report = summarise(study, observed)
    roots = tuple(root.node for root in report.roots)
    answer = next((answer for answer in report.nearest if answer.node in roots[:1]), None)
    best = answer.found[0] if answer and answer.found else None
    used = time.process_time() - started
    return Answer(
        faithful=_faithful(study, model),
        acts=report.verdict.reason != "all bits are equal",
        status=report.verdict.status,
        roots=roots,
        named=tuple(str(match) for match in answer.found) if answer and answer.explained else (),
        nearest=str(best) if best else "",
        equal=best.equal if best else 1.0,
        tried=answer.tried if answer else 0,
        seconds=used,
        bytes=len(json.dumps(asdict(report), default=str)),
    )


@dataclass(slots=True)
class _Logits:
    """An observer: the candidate's logits."""

    tensors: list[torch.Tensor] = field(default_factory=list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.op.name == "lm_head":
            self.tensors.append(view.tensor(CANDIDATE).clone())


def _faithful(study: Study, model: Any) -> bool:
    side, logits = study.candidate, _Logits()
    walker = Walker(name=CANDIDATE, plan=side.plan, schedule=micro_batches(side), functions=study.functions)
    run([walker], study.model.weights, study.tokens.input_ids, [logits])
    with torch.no_grad():
        return same_bits(logits.tensors[0], model(study.tokens.input_ids, use_cache=False).logits)
