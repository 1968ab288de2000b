"""The bound plan of a recipe or a checkpoint as rows to print; computes nothing and reads no weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from moeparity.bisection.expectations import Expectation, expectations, refuse_unknown, refuse_unmeasured
from moeparity.errors import Where, display_path, listed
from moeparity.plan.address import ranges, role
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.choices import choices
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.recorded import OF_THE_PROGRAM
from moeparity.plan.schedule.settings import ScheduleSettings, described, possible_phases, settings
from moeparity.plan.schedule.steps import PHASES, Phase
from moeparity.plan.sides import bound_side, cases_of, refuse_other_versions
from moeparity.plan.spec import reader
from moeparity.plan.spec.recipe_schema import RecipeFile
from moeparity.plan.toggles import Toggle, toggles


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attribute of nodes that have the same setting, such as `layers[0:4].moe.combine`: each side's value and
    origin.

    evidence: of the profiles for it, `unknown` if none speaks of it.
    """

    nodes: str
    op: str
    attribute: str
    values: tuple[str, ...]
    origin: str
    evidence: str
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The plans of one variant, or of both sides of a recipe.

    toggles: None for a single variant. schedules: of a recipe's sides in words, each with the phases that its steps may
    have. expectations: what the recipe expects of its report.
    """

    title: str
    sides: tuple[str, ...]
    graph: Graph
    plans: tuple[Plan, ...]
    toggles: tuple[Toggle, ...] | None = None
    schedules: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...] = ()

    @property
    def rows(self) -> Iterator[Row]:
        """A row for each choice and each group of layers with the same settings, in execution order."""
        layers: dict[tuple[str, str, str, tuple[str, ...], str, str], list[int]] = {}
        for node in self.graph.nodes:
            for choice in choices(node, self.plans):
                key = (role(node.name), node.op.name, choice.name, choice.values, choice.origin, choice.evidence)
                layers.setdefault(key, []).append(-1 if node.layer is None else node.layer)
        for (nodes, op, attribute, values, origin, evidence), indices in layers.items():
            yield Row(
                nodes=nodes.replace("[*]", f"[{ranges(indices)}]"),
                op=op,
                attribute=attribute,
                values=values,
                origin=origin,
                evidence=evidence,
                differs=len(set(values)) > 1,
            )


def outline_checkpoint(folder: Path, profile: str) -> Outline:
    """The plan of one profile on a checkpoint's graph. Raises MoeparityError."""
    graph, config = _graph(folder)
    dtype = config.dtype or _file_dtype(folder)
    plan = bind(graph, load_profile(profile, Where(Path("--profile"))), dtype, phases=PHASES)
    title = f"{display_path(folder)} ({graph.model_type}, {graph.layers} layers), profile {profile}, {plan.dtype}"
    return Outline(title=title, sides=("value",), graph=graph, plans=(plan,))


def outline_recipe(path: Path) -> Outline:
    """Both plans of a recipe, its toggles and its expectations. Raises MoeparityError."""
    recipe = reader.read_recipe(path)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    graph, config = _graph(folder)
    adapter = reader.find_adapter(recipe, path)
    graph = graph if adapter is None else _adapted(graph, folder, adapter)
    dtype = config.dtype or (_file_dtype(folder) if recipe.synthetic is None else UNDECLARED_DTYPE)
    variants = recipe.variants
    # If the candidate is a trace, it has no choices to show.
    sides = 1 if recipe.candidate.trace is not None else 2
    schedules = [settings(v.schedule, v.micro_batch, None, Where(path, v.line), v.placement.groups) for v in variants]
    may_have = [possible_phases(schedule) for schedule in schedules]
    phases = tuple(phase for phase in PHASES if any(phase in phases_of_side for phases_of_side in may_have))
    profiles = [load_profile(variant.profile, Where(path, variant.line)) for variant in variants]
    refuse_other_versions(recipe, schedules, Where(path))
    cases = cases_of(graph, dtype, phases, variants, profiles, Where(path), updates=len(recipe.earlier))
    reference, candidate = (
        bound_side(graph, variant, profile, dtype, Where(path, variant.line), phases=cases, versions=recipe.earlier)
        for variant, profile in zip(variants, profiles, strict=True)
    )
    recipe_toggles = tuple(toggles(reference, candidate, recipe.by))
    refuse_unmeasured(recipe, Where(path))
    if not recipe.split:
        # The parts that `split` makes of a toggle are known only after the run, so names can't be checked then.
        refuse_unknown(recipe.expect, (toggle.name for toggle in recipe_toggles), Where(path))
    return Outline(
        title=(
            f"{display_path(path)}: {display_path(folder)} ({graph.model_type}, {graph.layers} layers), "
            f"reference {recipe.reference.profile}, candidate {recipe.candidate.label}"
        ),
        sides=("reference", "candidate")[:sides],
        graph=graph,
        plans=(reference.plan, candidate.plan)[:sides],
        toggles=recipe_toggles,
        schedules=_schedules(recipe, schedules, may_have)[:sides],
        expectations=expectations(recipe.expect, graph, Where(path)),
    )


def _schedules(
    recipe: RecipeFile, schedules: Sequence[ScheduleSettings], may_have: Sequence[Sequence[Phase]]
) -> tuple[str, ...]:
    lines = tuple(starmap(_schedule, zip(schedules, may_have, strict=True)))
    reference = recipe.reference
    if recipe.candidate.trace is None or reference.schedule is not None or reference.micro_batch is not None:
        return lines
    return (f"{lines[0]}, or {OF_THE_PROGRAM} (docs/trace-recipes.md)", *lines[1:])


def _schedule(of: ScheduleSettings, phases: Sequence[Phase]) -> str:
    return described(of) if of.is_plain else f"{described(of)}. Its steps may be of {listed(phases)}"


def _graph(folder: Path) -> tuple[Graph, Config]:
    config = Config(folder / "config.json")
    return expand(config), config


def _adapted(graph: Graph, folder: Path, adapter: Path) -> Graph:
    from moeparity.inputs.weights.adapter import adapted
    from moeparity.inputs.weights.checkpoint import Checkpoint

    return adapted(graph, Checkpoint(folder), adapter)


def _file_dtype(folder: Path) -> str:
    from moeparity.inputs.weights.checkpoint import Checkpoint
    from moeparity.inputs.weights.fit import file_dtype

    return file_dtype(Checkpoint(folder))
