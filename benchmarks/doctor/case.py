"""A case: what was planted where, what the doctor said of it, and whether that is right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.doctor.drawn import CLEAN, PROMPT, ROUTES, TWO, UNLISTED, Plan, Programs, plan, slot
from moeparity.doctor.case import Request
from moeparity.doctor.examine import examine
from moeparity.doctor.report import Examination
from tests.doctor.faulty import routes_of
from tests.doctor.programs import ROOT, drifted, log, scored

SIZES = {(8, 64): 6, (16, 32): 8, (24, 16): 6, (24, 24): 4, (32, 32): 1, (32, 64): 1}
"""How often a run has so many sequences of so many tokens."""
NEAR = 0.05
"""A number is right if it is no further off, as a share of it."""
WRONG = "wrongly named"
_NUMBER = re.compile(r"\(\w+=([^)]*)\)")
_FROM_LOG = {"sampling", "tokens", "positions"}
"""Kinds that a log may name without a simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A run: what is known of it, and its evidence. log: both sides' values, with routes where `routes` is."""

    known: Mapping[str, Any]
    log: Path
    current: Path
    previous: Path
    routes: Tensor | None

    def examined(self, evidence: Path | None = None, *, with_previous: bool = True) -> dict[str, Any]:
        """What the doctor says of its log, or of other evidence of it."""
        begin = time.perf_counter()
        report = examine(
            Request(
                evidence=(evidence or self.log,),
                checkpoint=self.current,
                previous=self.previous if with_previous else None,
                sampler="hf-eager",
            )
        )
        return {**self.known, "commit": commit(), "seconds": time.perf_counter() - begin} | outcome(report)


def examined(folder: Path, seed: int, number: int) -> dict[str, Any]:
    """Draw a case, make its evidence, examine it."""
    return made(folder, seed, number).examined()


def made(folder: Path, seed: int, number: int) -> Made:
    """Draw a case, and make its evidence."""
    draw = Random(f"{seed} {number}")  # noqa: S311
    kind, architecture = slot(number)
    current = architecture.made(folder / architecture.name)
    ids = architecture.ids(draw, *draw.choices(tuple(SIZES), tuple(SIZES.values()))[0])
    fraction, party = draw.choice((0.05, 0.1, 0.2)), draw.choice(("sampler", "trainer"))
    place = folder / f"case-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    previous = drifted(current, place / "previous", fraction=fraction)
    of = Programs(architecture=architecture, current=current, previous=previous, fraction=fraction, ids=ids)
    planted = plan(kind, draw, of)
    good, bad = _sides(planted, draw, of)
    sampler, trainer = (bad, good) if party == "sampler" else (good, bad)
    prompt = PROMPT if kind in {"positions", "steps"} or draw.random() < 1 / 2 else 1
    routes = routes_of(current, ids) if kind == ROUTES or draw.random() < 1 / 4 else None
    path = log(place / "log.jsonl", ids, sampler, trainer, prompt=prompt)
    if routes is not None:
        rewrite(path, path, {"routed_experts": routes.tolist()})
    known = {
        "number": number,
        "kind": kind,
        "model": architecture.name,
        "truth": list(planted.truth) or ([planted.unlisted] if planted.unlisted else []),
        "value": planted.value,
        "party": party,
        "fraction": fraction,
        "routes": routes is not None,
        "shape": list(ids.shape),
    }
    return Made(known=known, log=path, current=current, previous=previous, routes=routes)


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


def rewrite(source: Path, target: Path, columns: Mapping[str, Sequence[Any] | None]) -> Path:
    """A log with other columns, one value for each sequence; None takes a column out."""
    records = [json.loads(line) for line in source.read_text().splitlines()]
    with target.open("w", encoding="utf-8") as file:
        for number, record in enumerate(records):
            plain = {name: value for name, value in record.items() if name not in columns}
            added = {name: values[number] for name, values in columns.items() if values is not None}
            file.write(json.dumps(plain | added) + "\n")
    return target


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
        "alike": [name for cause in causes[:1] for name in cause.alike],
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
    if case["kind"] == TWO:
        causes = set(case["named"])
        return "right" if causes == set(case["truth"]) else "one of two" if causes < set(case["truth"]) else WRONG
    names = [*case["named"], *case["alike"]] if len(case["named"]) == 1 else []
    is_right = case["at"] == [case["party"]] and any(_is(name, case) for name in names)
    return "right" if is_right else WRONG


def _is(name: str, case: Mapping[str, Any]) -> bool:
    """Whether a name is the truth, with its number."""
    (truth,) = case["truth"]
    value = case["value"]
    if name == truth:
        return True
    stated = _NUMBER.search(truth)
    value = float(stated[1]) if value is None and stated is not None else value
    number = _NUMBER.search(name)
    if value is None or number is None:
        return False
    return bool(abs(float(number[1]) / value - 1) < NEAR and _NUMBER.sub("", name) == _NUMBER.sub("", truth))
