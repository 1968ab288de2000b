"""A case: what was planted where, what the doctor said of it, and whether that is right."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.doctor.faults import MISTAKES, PROMPT, STALE, UNLISTED, Programs, drawn_number, drawn_tokens
from moeparity.doctor.case import Request
from moeparity.doctor.examine import examine
from moeparity.doctor.report import Examination
from tests.doctor.programs import Patch, drifted, log, scored, tokens

KINDS = {
    "clean": 5,
    "stale": 3,
    "mistake": 2,
    "number": 4,
    "tokens": 5,
    "two": 3,
    "unlisted": 4,
}
"""How often each kind is drawn."""
NEAR = 0.05
"""A number is right if it is no further off, as a share of it."""
WRONG = "wrongly named"
_NUMBER = re.compile(r"\(\w+=([^)]*)\)")


def examined(folder: Path, seed: int, number: int, current: Path) -> dict[str, Any]:
    """Draw a case, make its evidence, examine it."""
    draw = random.Random(f"{seed} {number}")  # noqa: S311
    kind = draw.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    ids = tokens(draw.choice((16, 24, 32)), draw.choice((16, 24, 32)))
    fraction, party = draw.choice((0.05, 0.1, 0.2)), draw.choice(("sampler", "trainer"))
    place = folder / f"case-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    previous = drifted(current, place / "previous", fraction=fraction)
    kernels = [draw.choice(("sdpa", "eager")) for _ in range(2)]
    batches = [draw.choice((1, 2, 8)), draw.choice((1, 4, 8))]
    truth, value, bad, good = _planted(kind, draw, Programs(current=current, previous=previous, ids=ids), fraction)
    right = scored(current, ids, batches[1], patch=good, kernel=kernels[1])
    wrong = bad if isinstance(bad, Tensor) else scored(bad[0], ids, batches[0], patch=bad[1], kernel=kernels[0])
    sides = (wrong, right) if party == "sampler" else (right, wrong)
    evidence = log(place / "log.jsonl", ids, *sides, prompt=PROMPT if kind == "tokens" else 1)
    begin = time.perf_counter()
    of = examine(Request(evidence=(evidence,), checkpoint=current, previous=previous, sampler="hf-eager"))
    case = {
        "number": number,
        "kind": kind,
        "truth": truth,
        "value": value,
        "party": party,
        "fraction": fraction,
        "seconds": time.perf_counter() - begin,
    }
    return case | _outcome(of)


def _planted(
    kind: str, draw: random.Random, of: Programs, fraction: float
) -> tuple[list[str], float | None, Tensor | tuple[Path, Patch | None], Patch | None]:
    """The names to be given, the number, the faulty side (its values, or its weights and patch), and the patch of the
    other side.
    """
    if kind == "stale":
        truth = draw.choice(tuple(STALE))
        return [truth], None, (_mixed(of, truth, fraction), None), None
    if kind == "tokens":
        truth, scorer = drawn_tokens(draw)
        return [truth], None, scorer(of), None
    if kind == "number":
        family, value, patch = drawn_number(draw)
        return [family], value, (of.current, patch), None
    if kind == "two":
        truth, (mistake, patch) = draw.choice(tuple(STALE)[:9]), draw.choice(tuple(MISTAKES.items()))
        together = draw.random() < 0.5
        weights = _mixed(of, truth, fraction)
        return [truth, mistake], None, (weights, patch if together else None), None if together else patch
    if kind == "clean":
        return [], None, (of.current, None), None
    truth, patch = draw.choice(tuple((MISTAKES if kind == "mistake" else UNLISTED).items()))
    return [truth], None, (of.current, patch), None


def _mixed(of: Programs, truth: str, fraction: float) -> Path:
    folder = of.previous.parent / "mixed"
    return drifted(of.current, folder, lambda name: STALE[truth] not in name, fraction=fraction)


def _outcome(of: Examination) -> dict[str, Any]:
    causes = of.explanations[:1] if of.two is None else of.two.causes
    return {
        "tokens": of.tokens,
        "size": of.size.estimate,
        "legal": of.legal,
        "answer": of.answer,
        "named": list(of.blame.named),
        "at": [cause.party for cause in causes],
        "alike": list(causes[0].alike),
        "first": causes[0].name,
        "share": causes[0].share.estimate,
        "logged": list(of.logged),
    }


def verdict(case: Mapping[str, Any]) -> str:
    """What became of a case: right, one of two, wrongly named, or why it was given no name."""
    if case["answer"] == "logged":
        return "named from the log" if case["kind"] in {"tokens", "number"} else WRONG
    if case["answer"] != "named":
        return str(case["answer"])
    if case["kind"] in {"clean", "unlisted"}:
        return WRONG
    if case["kind"] == "two":
        causes = set(case["named"])
        return "right" if causes == set(case["truth"]) else "one of two" if causes < set(case["truth"]) else WRONG
    names = [*case["named"], *case["alike"]] if len(case["named"]) == 1 else []
    is_right = case["at"] == [case["party"]] and any(_is(name, case) for name in names)
    return "right" if is_right else WRONG


def _is(name: str, case: Mapping[str, Any]) -> bool:
    """Whether a name is the truth, with its number."""
    if case["value"] is None:
        return bool(name == case["truth"][0])
    number = _NUMBER.search(name)
    there = number is not None and abs(float(number[1]) / case["value"] - 1) < NEAR
    return bool(there and _NUMBER.sub("", name) == case["truth"][0])
