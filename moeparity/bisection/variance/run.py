"""`moeparity variance`: runs a recipe's tokens in several compositions in one pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from moeparity.bisection.degeneracy.measure import degeneracy, flat_logits
from moeparity.bisection.degeneracy.show import reasons
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.run.data import Cost, Run
from moeparity.bisection.run.measure import run_of, variant
from moeparity.bisection.sample import generate
from moeparity.bisection.schedule.measure import seeing
from moeparity.bisection.study import Study
from moeparity.bisection.trials import walker
from moeparity.bisection.variance.compositions import Group, groups
from moeparity.bisection.variance.measure import Variance, group_variance
from moeparity.bisection.variance.report import SideVariance, VarianceReport
from moeparity.bisection.variance.show import reading
from moeparity.engine.passes import Pass
from moeparity.engine.walker import Walker
from moeparity.errors import MoeparityError, Where, counted, did_you_mean, listed
from moeparity.plan.schedule.steps import PHASES
from moeparity.plan.sides import CANDIDATE, REFERENCE, SIDES, walked
from moeparity.plan.spec import variant_schema
from moeparity.progress import Callback

BOTH: Final = "both"

GroupsOf = Mapping[tuple[str, ...], tuple[Group, ...]]
"""The compositions by the names of the sides that have them: one side, or both if they compute the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceRequest:
    """Which sizes of batches to try, and for which side, or `both`."""

    batches: tuple[int, ...]
    side: str = BOTH

    @classmethod
    def of(cls, batches: str, side: str) -> VarianceRequest:
        """The request that a user typed, such as `1,2,4,8`. Raises MoeparityError."""
        try:
            sizes = tuple(dict.fromkeys(int(size) for size in batches.split(",")))
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            raise MoeparityError(
                f"--batches {batches}: expected sizes of 1 or more with commas between, such as 1,2,4,8."
            )
        if side not in (BOTH, *SIDES):
            hint = did_you_mean(side, (BOTH, *SIDES))
            raise MoeparityError(f"--side {side}: expected one of {listed((BOTH, *SIDES))}.{hint}")
        return cls(batches=sizes, side=side)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides whose compositions are tried."""
        return SIDES if self.side == BOTH else (self.side,)


def variance(
    recipe: str | Path,
    request: VarianceRequest,
    *,
    device: str = "auto",
    allow_code: bool = False,
    memory_limit: float | None = None,
    progress: Callback | None = None,
) -> VarianceReport:
    """Compute the same sequences in several compositions, all in one pass over the weights, and compare their bits.

    Raises MoeparityError for whatever is wrong with the recipe, if there is nothing to compare, and if the pass does
    not fit into memory.
    """
    options = Options(attribution=False, allow_code=allow_code, memory_limit=memory_limit)
    study = generate(prepare(Path(recipe), device=device, options=options, progress=progress), progress=progress)
    study.refuse_recorded("moeparity variance")
    groups_of = _groups(study, request)
    study = _bound(study, groups_of, options)
    return _measured(study, groups_of, progress)


def _groups(study: Study, request: VarianceRequest) -> GroupsOf:
    """The compositions of each side; of both at once if only their schedules differ."""
    by_side = {
        side: groups(
            study.sides[side].schedule, request.batches, study.grid, Where(study.path, _recipe(study, side).line)
        )
        for side in request.sides
    }
    is_one_plan = all(toggle.kind == "schedule" for toggle in study.toggles)
    if is_one_plan and len(by_side) > 1 and by_side[REFERENCE] == by_side[CANDIDATE]:
        return {SIDES: by_side[REFERENCE]}
    return {(side,): of_side for side, of_side in by_side.items()}


def _recipe(study: Study, name: str) -> variant_schema.Variant:
    """The recipe's variant of a side."""
    return study.recipe.reference if name == REFERENCE else study.recipe.candidate


def _bound(study: Study, groups_of: GroupsOf, options: Options) -> Study:
    """The study, bound for every phase that some composition has."""
    every = {
        composition.settings
        for of_side in groups_of.values()
        for group in of_side
        for composition in group.compositions
    }
    there = {phase for settings in every for phase in walked(settings, study.grid, Where(study.path)).phases}
    if there <= set(study.reference.plan.phases):
        return study
    phases = tuple(phase for phase in PHASES if phase in there)
    again = prepare(study.path, options=replace(options, phases=phases), opener=lambda *_, **__: study.model)
    return again.on(study.tokens)


def _measured(study: Study, groups_of: GroupsOf, progress: Callback | None) -> VarianceReport:
    """Run all compositions in one pass, and report what was seen of them."""
    start = time.perf_counter()
    walkers_of = {
        (sides, group.kind): _walkers(study, sides[0], group)
        for sides, of_side in groups_of.items()
        for group in of_side
    }
    groups_of_walkers = tuple(walkers_of.values())
    ids, real, scored = study.outcomes_on_device
    pairs = [(first, second) for first, *others in groups_of_walkers for second in others]
    observer = Variance(study.model.graph, pairs, ids, scored, real)
    flat = flat_logits(study, tuple(first.name for first, *_ in groups_of_walkers))
    every = [walk for walks in groups_of_walkers for walk in walks]
    finished = study.passes(progress).run(every, [observer, flat])
    sides = tuple(
        SideVariance(
            sides=names,
            variant=variant(_recipe(study, names[0]), study.sides[names[0]]),
            seeing=seeing(study.sides[names[0]].plan),
            groups=tuple(
                group_variance(group, observer.of(walkers_of[names, group.kind]), study.grid, study.model.graph)
                for group in of_side
            ),
        )
        for names, of_side in groups_of.items()
    )
    degenerate = degeneracy(study, flat)
    return VarianceReport(
        run=_of_run(study, every),
        synthetic=study.recipe.synthetic,
        sides=sides,
        degeneracy=degenerate,
        reasons=(*reasons(degenerate), *_unknown(sides)),
        reading=tuple(reading(sides)),
        cost=_cost(study, every, finished, time.perf_counter() - start),
    )


def _walkers(study: Study, side: str, group: Group) -> tuple[Walker, ...]:
    sides = {
        composition.name: replace(study.sides[side], schedule=composition.settings)
        for composition in group.compositions
    }
    return tuple(walker(study, (side, group.kind, name), composed) for name, composed in sides.items())


def _unknown(sides: Sequence[SideVariance]) -> Iterator[str]:
    """Why figures of scored tokens would say nothing, in sentences."""
    comparisons = [comparison for side in sides for comparison in side.comparisons]
    worst = max(comparison.distance.nonfinite for comparison in comparisons)
    if worst:
        yield f"{counted(worst, 'scored token')} of {comparisons[0].ratio.scored:,} have a NaN or an infinity"
    if not all(comparison.ratio.scored for comparison in comparisons):
        yield "some compositions have no scored token in common"


def _cost(study: Study, walkers: Sequence[Walker], finished: Pass, seconds: float) -> Cost:
    steps = sum(len(walk.schedule.on(*study.tokens.input_ids.shape).steps) for walk in walkers)
    return Cost(
        evaluations=sum(finished.counts.evaluations.values()),
        naive_evaluations=steps * len(study.model.graph.nodes),
        weight_bytes_read=finished.counts.bytes_read,
        seconds=seconds,
        memory_estimated=finished.footprint.total,
        memory_peak=None,
    )


def _of_run(study: Study, walkers: Sequence[Walker]) -> Run:
    scored = study.tokens.loss_mask.clone()
    scored[:, 0] = False
    return run_of(study, int(scored.sum()), len(walkers))
