"""What the nearest choices leave of recorded values, and what no legal order of the same sums can explain of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from moeparity.engine.computation import weights_of
from moeparity.errors import SpecError
from moeparity.evidence.envelope.band import band
from moeparity.evidence.envelope.legal_orders import Call, extent, orders_of
from moeparity.evidence.explain.extent import extent_of
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.report import Left
from moeparity.evidence.explain.sample import Sample
from moeparity.inputs.weights.loaded import asks_for
from moeparity.metrics.divergence import compare
from moeparity.ops.attribute import RefusedError

DRAWS: Final = 16
"""Legal orders that are drawn."""


def left_by(kernels: Kernels, choices: Choices, samples: Sequence[Sample]) -> Left:
    """What these choices leave on some micro-batches; orders are drawn on the first that has any other bits."""
    elements = differing = 0
    furthest, worst = 0.0, None
    for sample in samples:
        trial = kernels.outputs(choices, sample)
        for port, value in enumerate(sample.compared):
            elements += value.numel()
            count, far = (value.numel(), math.inf) if trial is None else _apart(value, trial[port])
            differing, furthest = differing + count, max(furthest, far)
            worst = sample if worst is None and count else worst
    extent = extent_of(kernels, choices, samples)
    remainder = Left(differing=differing / max(1, elements), furthest=furthest, extent=extent)
    return remainder if worst is None else _beyond_orders(remainder, kernels, choices, worst)


def _apart(value: Tensor, trial: Tensor) -> tuple[int, float]:
    """How many elements have other bits, and how far they lie apart, in ulps of the coarser dtype."""
    if value.shape != trial.shape:
        return value.numel(), math.inf
    if not (value.is_floating_point() and trial.is_floating_point()):
        differ = int((value != trial).sum())
        return differ, float(differ > 0)
    error = compare(value, trial)
    return error.elements - error.equal, math.inf if error.excluded else float(error.max_ulp)


def _beyond_orders(remainder: Left, kernels: Kernels, choices: Choices, sample: Sample) -> Left:
    """`remainder` with how many elements lie outside of the band of legal orders."""
    replaced = kernels.replaced
    node, plan = replaced.nodes[-1], replaced.bound(choices).at_phase(sample.phase)
    try:
        values = kernels.values(choices, sample)
    except SpecError as error:
        return replace(remainder, not_drawn=str(error))
    port = 1 if node.op.role.routes else 0
    value, computed = sample.results[port], values[node.values[port]]
    if value.shape != computed.shape or not value.is_floating_point() or plan.partials[node.values[0]] > 1:
        return replace(remainder, not_drawn="the values have another shape, or lie in partial sums")
    slots = computed.shape[2] if node.op.role.slot_order else 1
    sequences, tokens = extent(node, (computed.shape[0], computed.shape[1]), slots=slots)
    reads = kernels.read_by(node, choices, sample, values)
    inputs = [None if read is None else read[:sequences, :tokens] for read in reads]
    active = plan.active(node)
    at = node.op.settings({**plan.told_to(node), **active})
    as_run = plan.as_run(node)
    weights = weights_of(kernels.loaded, as_run, plan.dtype_of(node.name), asks_for(as_run, active))
    call = Call(node=as_run, inputs=inputs, weights=weights, at=at)
    draw = "a fault changes what goes in or comes out" if as_run.edits else orders_of(call)
    if draw is None or isinstance(draw, str):
        return replace(remainder, not_drawn=draw or "it adds nothing up")
    try:
        draws = [draw(seed) for seed in range(DRAWS)]
    except RefusedError as error:
        return replace(remainder, not_drawn=f"{error.attribute}: {error.reason}")
    cut, value, *draws = (sample.of_real(x[:sequences, :tokens]) for x in (computed, value, *draws))
    around = band(cut, value, draws, cut.shape[0] * cut.shape[1])
    return replace(
        remainder, outside=around.outside, compared=around.elements, draws_outside=max(around.own_outside, default=0),
        beyond_orders=not around.inside,
    )  # fmt: skip
