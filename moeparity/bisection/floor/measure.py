"""The floor: the reference compared with itself under choices that no user would call a difference.

These are other schedules of its engine, and seeded draws of every legal summation order. If they exceed the gate, the
reference does not pass the gate against itself.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.floor.data import Floor, FloorTrial
from moeparity.bisection.floor.show import floor_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trial, TrialKey, Trials
from moeparity.bisection.verdict.data import Verdicts
from moeparity.errors import SpecError, Where
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import Verdict
from moeparity.plan.bound import Plan
from moeparity.plan.changed import in_all_phases
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.others import others
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.setting import Place, Setting
from moeparity.plan.sides import REFERENCE, Side

DRAWS = 2
"""How many seeded draws of all orders are run."""


def trials(study: Study, trials: Trials) -> Trials:
    """The first pass's trials for the floor; none if the recipe asks for no floor."""
    if not study.recipe.floor:
        return {}
    sides = floor_sides(study.reference, study.grid, Where(study.path))
    return {TrialKey("floor", name): Trial(side=side, base=REFERENCE) for name, side in sides.items()}


def floor_sides(reference: Side, grid: TokenGrid, where: Where) -> dict[str, Side]:
    """The reference under other choices, by name; `grid` has its tokens.

    Up to four are other schedules of its engine (`moeparity.plan.schedule.others`). In the others every attribute of
    kind `order` that takes effect gets a random value, for each node anew, as kernels that add in order of arrival
    would differ. Draws that an op refuses are left out.
    """
    schedules = others(reference.schedule, grid, where)
    trials = {name: replace(reference, schedule=schedule) for name, schedule in schedules.items()}
    for seed in range(DRAWS):
        with suppress(SpecError):
            plan = drawn(reference.plan, seed)
            if plan is not None:
                trials[f"orders drawn with seed {seed}"] = replace(reference, plan=plan)
    return trials


def drawn(plan: Plan, seed: int) -> Plan | None:
    """The plan with every order drawn at random from a seed; None where it has no order to draw.

    Raises SpecError where an op refuses what was drawn.
    """
    draw = random.Random(seed)  # noqa: S311
    settings = dict(_orders(plan, draw, f"drawn with seed {seed}"))
    return in_all_phases(plan, settings) if settings else None


def _orders(plan: Plan, draw: random.Random, why: str) -> Iterator[tuple[Place, Setting]]:
    for node in plan.graph.nodes:
        active = {name for in_phase in plan.distinct for name in in_phase.active(node)}
        for attribute in node.attributes:
            if attribute.kind == "order" and attribute.redrawn and attribute.name in active:
                value = draw.choice(attribute.values)
                where = Where(Path("floor"))
                rule = Rule(nodes=node.name, values=((attribute.name, value),), where=where, evidence=why)
                yield (node.name, attribute.name), Setting(value=value, rule=rule)


def measure(of: Context) -> Floor | None:
    """The floor; None if the recipe asks for none."""
    return _floor(of.study, of.observed, of[Verdicts].verdict) if of.study.recipe.floor else None


def _floor(study: Study, observed: Observed, verdict: Verdict) -> Floor:
    trials = tuple(_floor_trials(study, observed))
    # max() alone may drop a NaN, which has to come out as the largest.
    largest = max((trial.value.estimate for trial in trials), key=lambda value: (math.isnan(value), value), default=0.0)
    metric, value = gated_name(verdict.metric), verdict.value.estimate
    return Floor(
        trials=trials,
        largest=largest,
        bit_identical=bool(trials) and all(trial.bit_identical for trial in trials),
        ratio=value / largest if largest > 0 else None,
        reading=tuple(floor_reading(trials, metric=metric, value=value, gate=verdict.below)),
    )


def _floor_trials(study: Study, observed: Observed) -> Iterator[FloorTrial]:
    for key in observed.keys("floor"):
        sums = observed.logits.sums(key)
        yield FloorTrial(
            name=key.of,
            value=sums.gate_value(study.gate),
            bit_identical=not bool(sums.unequal.any()),
            flipped_routes=observed.routes.flip_share(key),
        )


MEASURE = Measure(gives=Floor, measure=measure, needs=(Verdicts,), trials=trials)
