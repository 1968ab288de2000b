"""Makes a recipe ready to run: reads and checks its files, binds both sides, finds every difference between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeparity import user_code
from moeparity.bisection.arrival.measure import refuse_nothing_drawn
from moeparity.bisection.options import Options
from moeparity.bisection.oracle.side import ORACLE, oracle_side
from moeparity.bisection.recipe_tokens import checked, refuse_unasked
from moeparity.bisection.study import Study
from moeparity.bisection.trials import refuse_impossible
from moeparity.errors import SpecError, Where, did_you_mean, display_path, listed
from moeparity.evidence.explain.good_run import GoodRun, open_good_run
from moeparity.evidence.maps.side import RecordedSide, recorded_side, refuse_without_logits
from moeparity.inputs.machine import refuse_other_machine
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.continuation import widened_grid
from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.reader import recipe_tokens
from moeparity.paths import LIMIT_FACTOR, limit
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import Profile, load_profile, overrides
from moeparity.plan.region import nodes_within
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.make import refuse_unfit
from moeparity.plan.schedule.others import others
from moeparity.plan.schedule.recorded import Recorded
from moeparity.plan.schedule.settings import ScheduleSettings, settings
from moeparity.plan.schedule.steps import PHASES, Phase
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.sides import CANDIDATE, SIDES, Side, bound_side, cases_of, phases_of, refuse_other_versions, walked
from moeparity.plan.spec import reader, recipe_schema, variant_schema
from moeparity.plan.spec.overrides import HERE as OVER
from moeparity.plan.spec.overrides import addresses
from moeparity.plan.toggles import Toggle, swap, toggles
from moeparity.progress import Callback

_MOST_DRAWS = 1000
"""The most legal orders that may be drawn. One order more lies outside their band with a probability of about 2 in
1,000.
"""


def prepare(
    path: Path,
    *,
    device: str = "auto",
    options: Options | None = None,
    progress: Callback | None = None,
    opener: Callable[..., Model] = open_model,
    values: bool = True,
) -> Study:
    """Read and check everything that a recipe names, bind both sides, and find their differences; runs nothing.

    opener: opens the checkpoint. values: if False, no weight is read, as estimates need. Raises MoeparityError; errors
    that can be found without weights come first.
    """
    study = _study(path, device, options or Options(), progress, opener)
    refuse_impossible(study)
    refuse_nothing_drawn(study)
    if values:
        study.model.check_values(progress)
    return study


def _study(path: Path, device: str, options: Options, progress: Callback | None, opener: Callable[..., Model]) -> Study:
    """The study of a recipe, made without reading a weight."""
    recipe = _recipe(path, options)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    tokens = recipe_tokens(recipe, path, folder)
    _check_gate(recipe, tokens, path)
    variants, where = recipe.variants, Where(path)
    profiles = _profiles(path, variants) if options.sides is None else list(options.sides.profiles)
    oracle = load_profile(ORACLE, Where(path, recipe.line_of("oracle"))) if recipe.oracle else None
    functions = _functions(path, variants, allow_code=options.allow_code)
    rules_of_sides = [overrides(addresses(options.overrides, side), OVER, evidence="set by --over") for side in SIDES]
    adapter = reader.find_adapter(recipe, path)
    model = opener(folder, device=device, synthetic=recipe.synthetic, progress=progress, values=False, adapter=adapter)
    tokens = checked(tokens, recipe, model, path)
    recorded = _recorded(recipe, path, model, tokens)
    good_run = None if recorded is None else _good_run(recipe, path, model, recorded)
    grid, schedules = _schedules(recipe, tokens, recorded, path)
    refuse_other_versions(recipe, schedules, where)
    further = options.phases if good_run is None else (*options.phases, *good_run.phases)
    phases = _phases(schedules, grid, further, where, has_floor=recipe.floor or tokens.has_records)
    cases = cases_of(model.graph, model.dtype, phases, variants, profiles, where, rules_of_sides, len(recipe.earlier))
    bound = zip(variants, profiles, rules_of_sides, schedules, strict=True)
    reference, candidate = (
        _side(recipe, model, variant, p, path, rules, cases, schedule) for variant, p, rules, schedule in bound
    )
    for side, variant in zip((reference, candidate), variants, strict=True):
        refuse_unasked(tokens, side.plan, Where(path, variant.line), path.parent / recipe.tokens.file)
    if good_run is not None:
        good_run.refuse_nothing_common(reference.plan)
    return Study(
        path=path,
        recipe=recipe,
        model=model,
        tokens=tokens,
        grid=grid,
        reference=reference,
        candidate=candidate,
        oracle=None if oracle is None else oracle_side(reference, oracle, model.dtype),
        toggles=_toggles(recipe, reference, candidate, path),
        swaps=_swaps(recipe, reference, candidate, path),
        functions=functions,
        memory_limit=options.memory_limit,
        attribution=options.attribution,
        digests=options.digests,
        recorded=None if recorded is None else _whole(recorded, reference.plan),
        good_run=good_run,
    )


def _recorded(recipe: recipe_schema.RecipeFile, path: Path, model: Model, tokens: TokenSet) -> RecordedSide | None:
    """The trace that is the candidate, compared with the tokens; None if the candidate is a profile.

    Raises TraceError if it does not fit the tokens, or has no logits of scored tokens.
    """
    variant = recipe.candidate
    if variant.trace is None:
        return None
    where = Where(path, variant.line_of("trace"))
    folder = reader.find_file(variant.trace, where, "trace")
    side = recorded_side(
        folder,
        model.graph,
        tokens.input_ids,
        tokens.attention_mask,
        tensor=model.weights.checkpoint.tensor,
        where=where,
        map_name=variant.map,
    )
    refuse_without_logits(side, model.graph, tokens.loss_mask)
    return side


def _good_run(recipe: recipe_schema.RecipeFile, path: Path, model: Model, recorded: RecordedSide) -> GoodRun | None:
    """The trace of a good run, opened beside the candidate's. Raises TraceError if the two can't be compared."""
    if recipe.baseline is None:
        return None
    where = Where(path, recipe.line_of("baseline"))
    folder = reader.find_file(recipe.baseline, where, "baseline")
    tensor, map_name = model.weights.checkpoint.tensor, recipe.candidate.map
    return open_good_run(folder, recorded.folder, model.graph, tensor=tensor, where=where, map_name=map_name)


def _whole(recorded: RecordedSide, plan: Plan) -> RecordedSide:
    """The recorded side without values that the reference has as partial sums, since no program has those whole."""
    whole = {value: graft for value, graft in recorded.grafts.items() if plan.partials[value] == 1}
    return replace(recorded, grafts=whole)


def _recipe(path: Path, options: Options) -> recipe_schema.RecipeFile:
    """The recipe as it is to be run. Raises SpecError if it asks for more than `_MOST_DRAWS` legal orders, or sets a
    choice of a candidate that is a trace.
    """
    recipe = options.applied(reader.read_recipe(path))
    over = [override for override in options.overrides if override.is_address and CANDIDATE in override.sides]
    if recipe.candidate.trace is not None and over:
        raise SpecError(
            f"{OVER}: {over[0].name!r} sets a choice of the candidate, and a trace has none. Write `reference.` in "
            "front."
        )
    most, where = limit(_MOST_DRAWS), Where(path, recipe.line_of("envelope"))
    if recipe.envelope > most:
        raise SpecError(
            f"{where}: envelope is {recipe.envelope:,}; expected at most {most:,} draws of each op. {LIMIT_FACTOR} "
            "raises that."
        )
    return recipe


def _schedules(
    recipe: recipe_schema.RecipeFile, tokens: TokenSet, recorded: RecordedSide | None, path: Path
) -> tuple[TokenGrid, tuple[ScheduleSettings, ...]]:
    """The grid of tokens, those still to be sampled included, and the settings of both sides' schedules.

    If the candidate is a trace and the reference gives neither micro-batch nor schedule, both get the program's own
    steps, provided that a schedule can express them. Raises SpecError if a schedule does not fit the tokens.
    """
    variants, sample = recipe.variants, recipe.tokens.sample
    places = [Where(path, variant.line) for variant in variants]
    schedules = tuple(
        settings(variant.schedule, variant.micro_batch, len(tokens.input_ids), where, variant.placement.groups)
        for variant, where in zip(variants, places, strict=True)
    )
    with_ids = any(schedule.block is not None for schedule in schedules)
    if sample is None:
        grid = token_grid(tokens, with_ids=with_ids)
    else:
        grid = widened_grid(tokens, sample.new_tokens, with_ids=with_ids)
    for schedule, where in zip(schedules, places, strict=True):
        refuse_unfit(schedule, grid, where)
    of_program = None if recorded is None else _as_the_program(recorded, recipe.reference, grid, places[0])
    return grid, schedules if of_program is None else (of_program, of_program)


def _as_the_program(
    recorded: RecordedSide, reference: variant_schema.Variant, grid: TokenGrid, where: Where
) -> ScheduleSettings | None:
    """The schedule that repeats the steps which the traced program ran; None if the recipe's reference states another
    one, or if no schedule can express these steps.
    """
    is_said = (
        reference.schedule is not None or reference.micro_batch is not None or reference.placement.groups.count > 1
    )
    if is_said or recorded.schedule is None:
        return None
    of_program = ScheduleSettings(recorded=Recorded(schedule=recorded.schedule, where=where))
    try:
        walked(of_program, grid, where)
    except SpecError:
        return None
    return of_program


def _phases(
    schedules: Sequence[ScheduleSettings],
    grid: TokenGrid,
    further: tuple[Phase, ...],
    where: Where,
    *,
    has_floor: bool,
) -> tuple[Phase, ...]:
    """The phases (prefill, decode and the like) of everything that may run: both sides, mixtures of them, the other
    schedules that the noise floor tries, and what is asked for besides (`further`).
    """
    tried = (
        [tried_schedule for schedule in schedules for tried_schedule in others(schedule, grid, where).values()]
        if has_floor
        else []
    )
    of_floor = {phase for tried_schedule in tried for phase in walked(tried_schedule, grid, where).phases}
    # What is computed anew when an update comes in is a prefill.
    of_updates = {"prefill"} if any(schedule.versions for schedule in schedules) else set()
    there = {*phases_of(schedules, grid, where), *of_floor, *of_updates, *further}
    return tuple(phase for phase in PHASES if phase in there)


def _check_gate(recipe: recipe_schema.RecipeFile, tokens: TokenSet, path: Path) -> None:
    """Raises SpecError if the gate bounds the distance from a record, and no scored token has one."""
    if recipe.record_gate is None or bool(tokens.recorded.any()):
        return
    where = Where(path, recipe.line_of("gate"))
    raise SpecError(
        f"{where}: gate: `recorded: {recipe.record_gate.recorded}` bounds the distance to recorded log-probabilities, "
        f"and {display_path(path.parent / recipe.tokens.file)} has none of a scored token. Add `logprobs` to it "
        "(docs/tokens.md), or write `metric:` for a bound against the reference."
    )


def _profiles(path: Path, variants: tuple[variant_schema.Variant, ...]) -> list[Profile]:
    """The profile of each side; read once if both sides name the same."""
    profiles: dict[str, Profile] = {}
    for variant in variants:
        if variant.profile not in profiles:
            where = Where(path, variant.line)
            profile = profiles[variant.profile] = load_profile(variant.profile, where)
            refuse_other_machine(profile.name, profile.machine, where)
    return [profiles[variant.profile] for variant in variants]


def _side(
    recipe: recipe_schema.RecipeFile,
    model: Model,
    variant: variant_schema.Variant,
    profile: Profile,
    path: Path,
    rules: tuple[Rule, ...],
    cases: tuple[Case, ...],
    schedule: ScheduleSettings,
) -> Side:
    """One side, bound. Raises SpecError, and CheckpointError if a fault takes weights that do not fit."""
    where = Where(path, variant.line)
    side = bound_side(
        model.graph, variant, profile, model.dtype, where, over=rules, phases=cases, versions=recipe.earlier
    )
    model.weights.refuse_unfit(side.plan)
    return replace(side, schedule=schedule)


def _swaps(
    recipe: recipe_schema.RecipeFile, reference: Side, candidate: Side, path: Path
) -> dict[str, tuple[tuple[str, ...], Toggle | None]]:
    """The blocks to restore, by selector. Raises GraphError for a selector that matches no node."""
    where = Where(path, recipe.line_of("swap"))
    blocks = {selector: tuple(nodes_within(selector, reference.plan.graph, where)) for selector in recipe.swap}
    return {selector: (nodes, swap(selector, nodes, reference, candidate)) for selector, nodes in blocks.items()}


def _toggles(recipe: recipe_schema.RecipeFile, reference: Side, candidate: Side, path: Path) -> tuple[Toggle, ...]:
    """All differences between the sides. Raises SpecError unless `costs` names each toggle once."""
    recipe_toggles = tuple(toggles(reference, candidate, recipe.by))
    _check_costs(recipe, [toggle.name for toggle in recipe_toggles], path)
    return recipe_toggles


def _check_costs(recipe: recipe_schema.RecipeFile, toggles: Sequence[str], path: Path) -> None:
    """Raises SpecError unless `costs` names each toggle once."""
    where = Where(path, recipe.line_of("costs"))
    for name in recipe.costs:
        if name not in toggles:
            raise SpecError(
                f"{where}: costs names {name!r}, which is no toggle of this recipe; it has {listed(toggles)}."
                f"{did_you_mean(name, toggles)}"
            )
    unpriced = [name for name in toggles if recipe.costs and name not in recipe.costs]
    if unpriced:
        raise SpecError(f"{where}: costs has nothing for {listed(unpriced)}. Give each toggle what restoring it costs.")


def _functions(
    path: Path, variants: tuple[variant_schema.Variant, ...], *, allow_code: bool
) -> dict[str, Callable[..., Any]]:
    """The users' functions of both sides, imported. Raises SpecError if that is not allowed or fails."""
    impls = [impl for variant in variants for impl in variant.impl]
    if impls and not allow_code:
        raise SpecError(
            f"{Where(path, impls[0].line)}: impl {impls[0].call} runs code of its own, which is any code. "
            "Read it, then add --allow-code."
        )
    folder = path.resolve().parent
    return {
        impl.call: user_code.load(impl.call, folder, f"{Where(path, impl.line)}: impl {impl.call}") for impl in impls
    }
