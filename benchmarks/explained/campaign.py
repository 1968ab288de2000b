"""The cases that a seed draws, and what `bisect` and `explain` say of each from its trace."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.explained.choices import KINDS, SINGLE
from benchmarks.explained.faults import ALL, FAULTS, Patch
from benchmarks.explained.program import Change, Program
from benchmarks.explained.unlisted import UNLISTED
from moeparity.bisection.pipeline import bisect
from moeparity.errors import MoeparityError
from moeparity.evidence.explain.explained_profile import profile_text
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.numerics.bits import same_bits
from tests.evidence.recorded import recorded
from tests.evidence.traced import forward, recipe, tokens
from tests.hf.reference import load

LISTED_CASES, UNLISTED_CASES, COMBINED, SINGLES = 37, 12, 28, 16
SHAPE = (4, 16)
DRAWS = 8
MATTER = 3
"""Choices of a combination that are to matter; of attention's no more than two ever do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program to be patched: `kind` is `fault`, `unlisted`, `combination`, `single` or `none`."""

    name: str
    kind: str
    model: str
    patch: Patch | None
    seed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said of a case: the node, whether the others were left alone, and the answer in one line.

    word: `named`; `undecided` (all but one word, which is among what it says the values do not decide); `equivalent`
    (other choices, which give the bits on other tokens too); `none`; or `other`.
    """

    case: Case
    node: str
    planted: str = "-"
    is_found: bool
    innocent: tuple[str, ...]
    word: str
    says: str

    @property
    def right(self) -> bool:
        """Whether it is as it should be."""
        expected = {"unlisted": ("none",), "none": ("none",)}.get(self.case.kind, ("named", "undecided", "equivalent"))
        return self.is_found and not self.innocent and self.word in expected


def cases(seed: int) -> Iterator[Case]:
    """All of them: every fault that fits is drawn before any is drawn again, models by the seed."""
    draw = Random(seed)  # noqa: S311
    for kind, count, listed in (("fault", LISTED_CASES, FAULTS), ("unlisted", UNLISTED_CASES, UNLISTED)):
        for fault in draw.sample(list(listed), min(count, len(listed))):
            model = draw.choice(listed[fault])
            yield Case(name=fault.__name__, kind=kind, model=model, patch=fault, seed=f"{seed} {fault.__name__}")
    for kind, count, kinds in (("combination", COMBINED, KINDS), ("single", SINGLES, SINGLE)):
        for number in range(count):
            name = sorted(kinds)[number % len(kinds)]
            op, switches = kinds[name], 1 if kind == "single" else draw.choice([3, 3, 4])
            model = draw.choice(op.models)

            patch = partial(op.drawn, count=switches)

            yield Case(name=f"{name} {number}", kind=kind, model=model, patch=patch, seed=f"{seed} {kind} {number}")
    for model in ALL:
        yield Case(name="unpatched", kind="none", model=model, patch=None, seed=str(seed))


def outcome(case: Case, checkpoint: Path, folder: Path) -> Outcome:
    """Capture, bisect, explain, judge."""
    program = load(checkpoint, "hf-eager", torch.bfloat16)
    ids, others = (tokens(SHAPE, seed=seed) for seed in (1, 2))
    model, change = _patched(case, program, ids)
    trace = _captured(model, ids, folder / "trace")
    roots = {root.node for root in bisect(recipe(folder, checkpoint, ids, trace, grafts=False), device="cpu").roots}
    answer = explain_trace(ExplainRequest(trace=trace, checkpoint=checkpoint))
    nodes = {node.node: node for node in answer.nodes if not node.as_started}
    changed = set() if change is None else {change.node}
    innocent = tuple(sorted((roots | nodes.keys()) - changed))
    if change is None:
        return Outcome(case=case, node="-", is_found=True, innocent=innocent, word="none", says="-")
    node = nodes.get(change.node)
    of_case = partial(
        Outcome, case=case, node=change.node, planted=" or ".join(map(" with ".join, change.words)) or "-"
    )
    if node is None:
        return of_case(is_found=False, innocent=innocent, word="none", says="-")
    word = _word(change, node)
    if word == "other" and _holds(answer, checkpoint, _captured(model, others, folder / "others"), folder, change.node):
        word = "equivalent"
    says = f"{node.matches[0]}" if node.explained else f"none of {node.tried}"
    is_named = change.node in roots
    return of_case(is_found=is_named, innocent=innocent, word=word, says=says)


def _patched(case: Case, program: Any, ids: Tensor) -> tuple[Any, Change | None]:
    """The program as the case has it; drawn again where that gives no other logits, or where too few choices of a
    combination matter. Raises ValueError if none gives others.
    """
    if case.patch is None:
        return program, None
    chosen, logits = _chosen(program, ids), forward(program, ids)
    drawn: list[tuple[Any, Change]] = []
    for number in range(DRAWS):
        model = copy.deepcopy(program)
        draw = Random(f"{case.seed} {number}")  # noqa: S311
        change = case.patch(Program(model=model, draw=draw, chosen=chosen))
        changed = forward(model, ids)
        if same_bits(changed, logits):
            continue
        idle = [word for word, patch in change.without.items() if _gives(program, patch, chosen, ids, changed)]
        words = tuple(tuple(word for word in words if word not in idle) for words in change.words)
        drawn.append((model, replace(change, words=words)))
        if not change.without or len(words[0]) >= MATTER:
            return drawn[-1]
    if not drawn:
        raise ValueError(f"{case.name} on {case.model}: {DRAWS} draws, and none changes any logit")
    return max(drawn, key=lambda pair: len(pair[1].words[0]))


def _gives(
    program: Any, patch: Callable[[Program], object], chosen: dict[int, list[int]], ids: Tensor, out: Tensor
) -> bool:
    """Whether another patch gives the same logits."""
    model = copy.deepcopy(program)
    patch(Program(model=model, draw=Random(), chosen=chosen))  # noqa: S311
    return same_bits(forward(model, ids), out)


def _word(change: Change, node: Explanation) -> str:
    """How the answers lie to the words. What values leave undecided was held against them beside the first answer, one
    choice at a time: so one word at most may stand there.
    """
    if not node.explained:
        return "none"
    exact = [" ".join(match.choices) for match in node.matches if match.exact]
    undecided = [f"{choice.place}={value}" for choice in node.open for value in choice.others]
    if any(all(word in text for word in words) for words in change.words for text in exact):
        return "named"
    missing = [[word for word in words if word not in exact[0]] for words in change.words]
    return "undecided" if any(len(m) == 1 and any(m[0] in text for text in undecided) for m in missing) else "other"


def _holds(answer: Explained, checkpoint: Path, others: Path, folder: Path, node: str) -> bool:
    """Whether the choices that were named give the node's bits on other tokens too."""
    try:
        text = profile_text(answer, "named")
    except MoeparityError:
        return False
    profile = folder / "named.yaml"
    profile.write_text(text, "utf-8")
    again = explain_trace(ExplainRequest(trace=others, checkpoint=checkpoint, profile=str(profile), nodes=(node,)))
    return all(node.as_started for node in again.nodes)


def _chosen(model: Any, ids: Tensor) -> dict[int, list[int]]:
    """The experts that tokens go to, by layer."""
    chosen: dict[int, list[int]] = {}
    handles = []
    for number, layer in enumerate(model.model.layers):
        router = getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None))
        if router is not None:

            def keep(_: Any, __: Any, out: tuple[Tensor, ...], number: int = number) -> None:
                chosen[number] = sorted(set(out[2].flatten().tolist()))

            handles.append(router.register_forward_hook(keep))
    forward(model, ids)
    for handle in handles:
        handle.remove()
    return chosen


def _captured(model: Any, ids: Tensor, folder: Path) -> Path:
    with recorded(folder):
        forward(model, ids)
    return folder
