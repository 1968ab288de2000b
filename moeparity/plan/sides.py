"""The two sides of a recipe, bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import Final

from moeparity import paths
from moeparity.errors import SpecError, Where, counted, display_path
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.cut import cut_by
from moeparity.plan.engine_profile import Profile, overrides, placement_rules
from moeparity.plan.faults.stated import earlier, lag_rules, stated
from moeparity.plan.flags import FlaggedPlans, Setup, known_flags
from moeparity.plan.gpu import gpu_rules, on_gpu
from moeparity.plan.graph import Graph
from moeparity.plan.messages import RowMessage
from moeparity.plan.region import regions
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.make import schedule as schedule_of
from moeparity.plan.schedule.settings import ScheduleSettings, described, mixed, parts, settings
from moeparity.plan.schedule.steps import FORWARD, PHASES, MicroBatches, Phase, Schedule
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.schedule.updates import other_versions
from moeparity.plan.spec import variant_schema
from moeparity.plan.spec.recipe_schema import RecipeFile

REFERENCE: Final = "reference"
CANDIDATE: Final = "candidate"
SIDES: Final = (REFERENCE, CANDIDATE)
_MANY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a recipe, or a mixture of both: a plan, and how its schedule is made.

    `flagged` are the plans that its engine would run with other flags; None where the side is not made of a profile.
    """

    plan: Plan
    schedule: ScheduleSettings
    flagged: FlaggedPlans | None = field(default=None, compare=False, repr=False)


def side_of(
    profile: Profile,
    bound: Callable[[Profile], Plan],
    schedule: ScheduleSettings,
    ranks: variant_schema.Placement,
) -> Side:
    """A side made of a profile on some `ranks`. `bound` binds the profile, and the profiles that it becomes with flags.
    Raises what `bound` raises.
    """
    plan = bound(profile)
    setup = Setup.of(plan, ranks.tensor if ranks.groups.count == 1 else None)
    return Side(plan=plan, schedule=schedule, flagged=FlaggedPlans(flags=known_flags(profile, setup), bind=bound))


def bound_side(
    graph: Graph,
    variant: variant_schema.Variant,
    profile: Profile,
    dtype: str,
    where: Where,
    sequences: int | None = None,
    over: tuple[Rule, ...] = (),
    phases: tuple[Case, ...] = (FORWARD,),
    versions: Sequence[variant_schema.Version] = (),
) -> Side:
    """A recipe's variant bound to a graph; `dtype` is the checkpoint's, used where the variant names none. `versions`
    are the recipe's earlier weights.

    Where the number of `sequences` is given, batches are at most that large. The rules `over` override what the variant
    sets. `phases` are those of all schedules that the plan may be run under, cut by the rules of all sides
    (`cases_of`).
    """
    set_rules = overrides(variant.set, where)
    placement = placement_rules(variant.placement, where)
    functions, faults = regions(graph, variant.impl, where), stated(graph, variant.faults, where)
    faults += earlier(graph, versions, faults, where)

    def bound(of: Profile) -> Plan:
        placed = (*placement, *gpu_rules(graph, variant, of, where))
        return bind(
            graph, on_gpu(of, variant.gpu), variant.dtype or dtype, set_rules, functions, placed, over, phases, faults
        )

    schedule = settings(variant.schedule, variant.micro_batch, sequences, where, variant.placement.groups)
    return side_of(profile, bound, schedule, variant.placement)


def cases_of(
    graph: Graph,
    dtype: str,
    phases: Sequence[Phase],
    variants: Sequence[variant_schema.Variant],
    profiles: Sequence[Profile],
    where: Where,
    over: Sequence[tuple[Rule, ...]] = (),
    updates: int = 0,
) -> tuple[Case, ...]:
    """Phases cut by the rules of all sides, and by the weights between so many `updates`, so that plans bound for them
    can be mixed; `dtype` as in `bound_side`.

    Raises SpecError.
    """
    rules = lag_rules(updates, where)
    for variant, profile, own_layer in zip(variants, profiles, over or ((),) * len(variants), strict=True):
        at = Where(where.path, variant.line)
        message = RowMessage.of(graph, variant.dtype or dtype, placement_rules(variant.placement, at))
        layers = (*on_gpu(profile, variant.gpu).from_below, gpu_rules(graph, variant, profile, at))
        every = (*chain.from_iterable(layers), *overrides(variant.set, at), *own_layer)
        rules += chain.from_iterable(map(message.in_rows, every))
    return cut_by(graph, phases, rules)


def refuse_other_versions(recipe: RecipeFile, schedules: Sequence[ScheduleSettings], where: Where) -> None:
    """Raises SpecError unless a recipe has earlier weights for each update of its schedules, and for no other."""
    versions, at = len(recipe.earlier), Where(where.path, recipe.line_of("earlier"))
    if versions and not any(schedule.versions for schedule in schedules):
        raise SpecError(
            f"{at}: `earlier` has {counted(versions, 'version')} of the weights, and no schedule places an update. Add "
            "`updates: {at: TOKEN}` to the schedule of the side that sampled, or leave `earlier` out."
        )
    for version in recipe.earlier:
        folder = where.path.parent / version if isinstance(version, str) else None
        if folder is not None and not paths.present(folder):
            raise SpecError(
                f"{at}: earlier: there is no folder {display_path(folder)}. A relative path starts at this file's "
                "folder."
            )
    for schedule, variant in zip(schedules, recipe.variants, strict=True):
        if schedule.versions not in (0, versions):
            raise other_versions(schedule.versions, versions, Where(where.path, variant.line))


def micro_batches(side: Side) -> MicroBatches:
    """The micro-batches of a side whose schedule is nothing but a micro-batch of a given size. Raises ValueError where
    it is anything else.
    """
    if not side.schedule.is_plain or side.schedule.batch is None:
        raise ValueError(f"{described(side.schedule)} is no micro-batch of a known size")
    return MicroBatches(side.schedule.batch, side.schedule.groups)


def phases_of(schedules: Sequence[ScheduleSettings], grid: TokenGrid, where: Where) -> tuple[Phase, ...]:
    """The phases that occur in some schedules of one grid, or in a mixture of two of them. Raises SpecError."""
    every = dict.fromkeys(schedules)
    for schedule, second in combinations(schedules, 2):
        names = parts(schedule, second)
        # With many parts not every mixture is tried: a new phase comes from a single part or a pair.
        most = len(names) if len(names) <= _MANY else 3
        moved = chain.from_iterable(combinations(names, count) for count in range(1, most))
        every |= dict.fromkeys(mixed(schedule, second, some) for some in moved)
    phases = {phase for schedule in every for phase in walked(schedule, grid, where).phases}
    return tuple(phase for phase in PHASES if phase in phases)


def walked(of: ScheduleSettings, grid: TokenGrid, where: Where) -> Schedule | MicroBatches:
    """A schedule in the form that the engine runs. Raises SpecError."""
    return MicroBatches(of.batch or grid.sequences, of.groups) if of.is_plain else schedule_of(of, grid, where)
