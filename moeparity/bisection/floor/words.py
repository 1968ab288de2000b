"""The floor: how far the reference lies from itself under choices that nobody would call a difference.

Trials of the reference with other micro-batches, and with seeded draws of every legal summation order. A gate below the
floor is one that the reference does not pass against itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from moeparity.errors import SpecError, Where
from moeparity.output.words import enumerated
from moeparity.plan.bind import BoundGraph, Place, Setting
from moeparity.plan.engine_profile import Rule
from moeparity.plan.sides import Side

DRAWS = 2
"""Seeded draws of all orders."""

AT_THE_FLOOR = 2.0
"""Up to this many times the floor a value is said to be at it."""

NOT_CONTAINED = "decode schedules and the inner orders of torch's own kernels"
"""What could move the reference too, and is not tried."""


def floor_trials(reference: Side, sequences: int) -> dict[str, Side]:
    """The reference under other choices, by name; `sequences` is how many there are.

    Other micro-batches are 1 and the largest proper divisor of the reference's own (so that no wave of sequences
    grows), 2 where that is 1. Every attribute of kind `order` that takes effect is drawn over its values, for each
    node anew: how kernels that add in arrival order would differ. Draws that an op refuses are left out.
    """
    sizes = _other_sizes(reference.micro_batch, sequences)
    trials = {f"micro-batch {size}": replace(reference, micro_batch=size) for size in sizes}
    for seed in range(DRAWS):
        with suppress(SpecError):
            drawn = _drawn(reference.plan, seed)
            if drawn is not None:
                trials[f"orders drawn with seed {seed}"] = replace(reference, plan=drawn)
    return trials


def _other_sizes(size: int, sequences: int) -> list[int]:
    if size == 1:
        return [2] if sequences > 1 else []
    half = next(divisor for divisor in range(size // 2, 0, -1) if size % divisor == 0)
    return sorted({half, 1})


def _drawn(plan: BoundGraph, seed: int) -> BoundGraph | None:
    """The plan with every order drawn at random; None where it has no order to draw."""
    draw = random.Random(seed)  # noqa: S311
    settings = dict(_orders(plan, draw, f"drawn with seed {seed}"))
    return replace(plan, settings={**plan.settings, **settings}) if settings else None


def _orders(plan: BoundGraph, draw: random.Random, why: str) -> Iterator[tuple[Place, Setting]]:
    for node in plan.graph.nodes:
        active = plan.active(node)
        for attribute in node.attributes:
            if attribute.kind == "order" and attribute.redrawn and attribute.name in active:
                value = draw.choice(attribute.values)
                where = Where(Path("floor"))
                rule = Rule(nodes=node.name, values=((attribute.name, value),), where=where, evidence=why)
                yield (node.name, attribute.name), Setting(value=value, rule=rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorValue:
    """The gate's metric of one trial against the reference; `bit_identical`: the logits of all scored tokens are."""

    name: str
    value: float
    bit_identical: bool


def floor_reading(values: Sequence[FloorValue], *, metric: str, value: float, gate: float) -> list[str]:
    """The floor in sentences, beside the candidate's `value` and the `gate`, all in the units of the metric."""
    if not values:
        return ["There is no floor: one sequence, and no summation order to draw."]
    contains = f"The floor does not contain {NOT_CONTAINED}."
    if all(trial.bit_identical for trial in values):
        names = enumerated([trial.name for trial in values])
        return [f"Floor: bit-identical. The reference gives the same bits under {names}.", contains]
    moved = [trial for trial in values if not trial.bit_identical]
    largest = max(moved, key=lambda trial: (math.isnan(trial.value), trial.value))
    if not largest.value > 0:
        return [f"Floor: {metric} {largest.value:g}, although bits differ under {largest.name}.", contains]
    sentences = [f"{metric} is {value / largest.value:.2g} x the floor, {largest.value:.3g} ({largest.name})."]
    if value <= largest.value:
        sentences.append("The candidate differs from the reference no more than the reference differs from itself.")
    elif value <= AT_THE_FLOOR * largest.value:
        sentences.append("The candidate is at the floor: the reference differs from itself about as much.")
    if gate < largest.value:
        sentences.append(
            f"The gate {gate:g} lies below the floor: the reference does not pass this gate against itself."
        )
    return [*sentences, contains]
