"""A case: what was planted where, what the doctor said of it, and whether that is right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.doctor.drawn import CLEAN, PROMPT, ROUTES, UNLISTED, Plan, Programs, plan, slot
from moeparity.doctor.case import DoctorRequest
from moeparity.doctor.examine import examine
from moeparity.doctor.report import Examination
from tests.doctor.faulty import routes_of
from tests.doctor.programs import ROOT, drifted, log, scored

SIZES = {(8, 64): 6, (16, 32): 8, (24, 16): 6, (24, 24): 4, (32, 32): 1, (32, 64): 1, (16, 256): 1, (64, 512): 0.25}
"""How often a run has so many sequences of so many tokens."""
NEAR = 0.05
"""A number is right if it is no further off, as a share of it."""
WRONG = "wrongly named"
_NUMBER = re.compile(r"\(\w+=([^,)]*)\)")
_FROM_LOG = {"sampling", "tokens", "positions"}
"""Kinds that a log may name without a simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A case with its evidence: the log of both sides, the checkpoint and the one before; facts: what a line says of
    it before it is examined. sides: what either says of the tokens, fp32 [B, T - 1] in nats. prompt: tokens of each
    prompt.
    """

    log: Path
    current: Path
    previous: Path
    facts: dict[str, Any]
    ids: Tensor
    sides: tuple[Tensor, Tensor]
    prompt: int

    def request(self) -> DoctorRequest:
        """To examine all of it."""
        return DoctorRequest(evidence=(self.log,), checkpoint=self.current, previous=self.previous, sampler="hf-eager")


def examined(folder: Path, seed: int, number: int) -> dict[str, Any]:
    """Draw a case, make its evidence, examine it, and remove it."""
    case = drawn(folder, seed, number)
    begin = time.perf_counter()
    report = examine(case.request())
    shutil.rmtree(case.log.parent)
    return case.facts | {"seconds": time.perf_counter() - begin} | outcome(report)


def drawn(folder: Path, seed: int, number: int) -> Drawn:
    """Draw a case, and make its evidence."""
    draw = Random(f"{seed} {number}")  # noqa: S311
    kind, architecture = slot(number)
    current = architecture.checkpoint(folder / architecture.name)
    ids = architecture.ids(draw, *draw.choices(tuple(SIZES), tuple(SIZES.values()))[0])
    fraction, party = draw.choice((0.05, 0.1, 0.2)), draw.choice(("sampler", "trainer"))
    place = folder / f"case-{seed}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    previous = drifted(current, place / "previous", fraction=fraction)
    of = Programs(architecture=architecture, current=current, previous=previous, fraction=fraction, ids=ids)
    planted = plan(kind, draw, of)
    good, bad = _sides(planted, draw, of)
    sides = (bad, good) if party == "sampler" else (good, bad)
    prompt = PROMPT if kind in {"positions", "steps"} or draw.random() < 1 / 2 else 1
    with_routes = kind == ROUTES or draw.random() < 1 / 4
    path = log(place / "log.jsonl", ids, *sides, prompt=prompt)
    if with_routes:
        add_routes(path, routes_of(current, ids))
    facts = {
        "number": number,
        "commit": commit(),
        "kind": kind,
        "model": architecture.name,
        "truth": planted.truth or ((planted.unlisted,) if planted.unlisted else ()),
        "value": planted.value,
        "party": party,
        "parties": _parties(planted, party),
        "fraction": fraction,
        "routes": with_routes,
        "shape": list(ids.shape),
    }
    return Drawn(log=path, current=current, previous=previous, facts=facts, ids=ids, sides=sides, prompt=prompt)


def _sides(planted: Plan, draw: Random, of: Programs) -> tuple[Tensor, Tensor]:
    """What the good side says of the tokens and the faulty one, as their programs run: fp32 [B, T - 1] in nats.

    Each has batches, pads, kernels and threads of its own where nothing is planted that needs others.
    """
    sides: list[Tensor] = []
    for batch in (draw.choice((1, 4, 8)), draw.choice((2, 3, 16))):
        options: dict[str, Any] = {
            "kernel": draw.choice(("sdpa", "eager")),
            "experts": draw.choice(("eager", "grouped_mm", "batched_mm")),
            "pads": draw.choice((0, 0, 5, -7)),
        }
        torch.set_num_threads(draw.choice((1, 1, 1, 2)))
        if planted.bad is not None and sides:
            sides.append(planted.bad())
        else:
            sides.append(scored(of.current, of.ids, batch, patch=planted.good, **options))
        torch.set_num_threads(1)
    return sides[0], sides[1]


def _parties(planted: Plan, party: str) -> list[str]:
    """The side of each planted fault, in the order of their names."""
    other_party = "trainer" if party == "sampler" else "sampler"
    return [party, party if planted.good is None else other_party][: max(1, len(planted.truth))]


def add_routes(path: Path, routes: Tensor) -> None:
    """Add routes int64 [B, T, MoE layers, top_k] to a log."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    with path.open("w", encoding="utf-8") as file:
        for record, of_sequence in zip(records, routes.tolist(), strict=True):
            file.write(json.dumps({**record, "routed_experts": of_sequence}) + "\n")


def commit() -> str:
    """The commit of the code that runs, with a `+` where files differ from it."""
    words = ["git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


def outcome(of: Examination) -> dict[str, Any]:
    """What an examination says, in short."""
    causes = of.explanations[:1] if of.two is None else of.two.causes
    return {
        "tokens": of.tokens,
        "size": of.size.estimate,
        "legal": of.legal,
        "answer": of.answer,
        "named": list(of.blame.named),
        "at": [cause.party for cause in causes],
        "alike": [list(cause.alike) for cause in causes],
        "first": causes[0].name if causes else "",
        "share": causes[0].share.estimate if causes else 0.0,
        "rivals": list(of.rivals),
        "logged": list(of.logged),
    }


def verdict(case: Mapping[str, Any]) -> str:
    """What became of a case: right, one of two, wrongly named, or why it was given no name."""
    if case["answer"] in {"logged", "found"}:
        return "named from the log" if case["kind"] in _FROM_LOG else WRONG
    if case["answer"] != "named":
        return str(case["answer"])
    if case["kind"] in {CLEAN, UNLISTED}:
        return WRONG
    right_names = {
        truth
        for cause in zip(case["named"], case["alike"], case["at"], strict=True)
        for truth in _planted_faults(case, *cause)
    }
    if len(right_names) < len(case["named"]):
        return WRONG
    return "right" if len(right_names) == len(case["truth"]) else "one of two"


def _planted_faults(case: Mapping[str, Any], name: str, alike: Sequence[str], party: str) -> Iterator[str]:
    """Which of the planted faults a named cause is, or what comes to the same; at its side."""
    for truth, place in zip(case["truth"], case["parties"], strict=True):
        if party == place and any(_is(each, truth, case["value"]) for each in (name, *alike)):
            yield truth


def _is(name: str, truth: str, value: float | None) -> bool:
    """Whether a name is the truth, with its number."""
    if name == truth:
        return True
    stated = _NUMBER.search(truth)
    value = float(stated[1]) if value is None and stated is not None else value
    number = _NUMBER.search(name)
    if value is None or number is None:
        return False
    return bool(abs(float(number[1]) / value - 1) < NEAR and _NUMBER.sub("", name) == _NUMBER.sub("", truth))
