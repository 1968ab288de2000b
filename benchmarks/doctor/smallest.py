"""The smallest temperature, softmax scale and share of stale experts that the doctor calls no noise, on the shipped
checkpoint: found by bisection of the size.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from benchmarks.doctor.faults import other_scale
from moeparity.doctor.case import Case, DoctorRequest, gather, opened
from moeparity.doctor.noise import noise
from tests.doctor.programs import QUICKSTART, drifted, log, scored, tokens

SEQUENCES, LENGTH = 32, 64
_STEPS = 8
_EXPERTS = 96
"""Routed experts of the checkpoint's four layers together."""
_OF_LAYER = 24


def smallest(folder: Path) -> Iterator[str]:
    """A line for each."""
    ids = tokens(SEQUENCES, LENGTH)
    right = scored(QUICKSTART, ids, 8)
    case = _case(folder, ids, right)
    of = noise([*case.bench.engines.values()], case.difference.d)
    assert of is not None
    bounds = ", ".join(f"{each.name} {each.bound:.2g}" for each in of.statistics)
    yield f"{SEQUENCES} x {LENGTH} tokens, noise of hf-eager at {of.level:.0%}: {bounds}"

    def is_bug(values: Tensor) -> bool:
        d = (values - right).double().flatten()
        of_fault = noise([*case.bench.engines.values()], d)
        assert of_fault is not None
        return not all(each.is_inside for each in of_fault.statistics)

    def is_stale_bug(fraction: float, count: float) -> bool:
        return is_bug(_stale(folder, ids, math.ceil(count), fraction))

    size = _bisected(lambda size: is_bug(scored(QUICKSTART, ids, 1, temperature=1 + size)), 1e-4, 1)
    yield f"temperature: {1 + size:.4f}"
    size = _bisected(lambda size: is_bug(scored(QUICKSTART, ids, 1, patch=partial(other_scale, 1 + size))), 1e-4, 1)
    yield f"softmax scale, in all layers: {1 + size:.3f} times"
    for fraction in (0.01, 0.05, 0.2):
        count = _bisected(partial(is_stale_bug, fraction), 0.5, _EXPERTS)
        says = f"{math.ceil(count)} of {_EXPERTS}" if math.isfinite(count) else f"not even {_EXPERTS}"
        yield f"stale experts, weights {fraction:.0%} off: {says}"


def _case(folder: Path, ids: Tensor, right: Tensor) -> Case:
    path = log(folder / "right.jsonl", ids, scored(QUICKSTART, ids, 1), right)
    request = DoctorRequest(evidence=(path,), checkpoint=QUICKSTART, sampler="hf-eager")
    return opened(request, gather(request))


def _stale(folder: Path, ids: Tensor, count: int, fraction: float) -> Tensor:
    """What a program says of which so many experts, layer by layer, are as they were before the update."""
    place = folder / "stale"
    shutil.rmtree(place, ignore_errors=True)
    stale = tuple(f".layers.{n // _OF_LAYER}.mlp.experts.{n % _OF_LAYER}." for n in range(count))
    drifted(QUICKSTART, place, lambda name: not any(part in name for part in stale), fraction=fraction)
    return scored(place, ids, 1)


def _bisected(is_bug: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest size, between low and high, that is a bug, to a few percent; infinite if `high` is none."""
    if not is_bug(high):
        return math.inf
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_bug(middle) else (middle, high)
    return high
