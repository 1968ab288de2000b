"""The bound plan of a recipe or a checkpoint, and its rows to print: nothing is computed and no weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from moeparity.bisection.expectations import Expectation, expectations, refuse_unknown, refuse_unshared
from moeparity.errors import Where, display_path, listed
from moeparity.ops.declaration import EDGE
from moeparity.plan.address import ranges, role
from moeparity.plan.bind import BoundGraph, bind
from moeparity.plan.config import UNDECLARED_DTYPE, Config
from moeparity.plan.difference import by_phase
from moeparity.plan.engine_profile import BY_RECIPE, UNKNOWN, load_profile
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph, Node
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.settings import ScheduleSettings, described, possible_phases, settings
from moeparity.plan.schedule.steps import PHASES, Phase
from moeparity.plan.setting import FAULT, Setting
from moeparity.plan.sides import bound_side, cases_of
from moeparity.plan.spec import reader
from moeparity.plan.toggles import Toggle, toggles

ABSENT = "-"
"""Where a choice takes no effect on a side."""

Entry = tuple[str, str, str]
"""The value of a choice on one side in one phase, where it was set, and how sure that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attribute of the nodes that agree in it: `layers[0:4].moe.combine`, its value per side, where it was set.

    `evidence` is how sure the profiles are of it, `unknown` where none speaks of it.
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
    """The plans of one variant or of both sides of a recipe; `toggles` is None for a single variant.

    `schedules` are those of a recipe's sides, each with the phases that its steps may have.
    `expectations` are what the recipe expects of its report.
    """

    title: str
    sides: tuple[str, ...]
    graph: Graph
    plans: tuple[BoundGraph, ...]
    toggles: tuple[Toggle, ...] | None = None
    schedules: tuple[str, ...] = ()
    expectations: tuple[Expectation, ...] = ()

    @property
    def rows(self) -> Iterator[Row]:
        """One row per choice and group of layers with equal settings, in execution order."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice at one node: its value per side (`-`: no effect), phase by phase where these differ, where they were
    set, and how sure that is; `by_side` has the latter two of each side.
    """

    name: str
    values: tuple[str, ...]
    origin: str
    evidence: str
    by_side: tuple[tuple[str, str], ...]


def outline_checkpoint(folder: Path, profile: str) -> Outline:
    """The plan of one profile on a checkpoint's graph. Raises MoeparityError."""
    graph, config = _graph(folder)
    dtype = config.dtype or _file_dtype(folder)
    plan = bind(graph, load_profile(profile, Where(Path("--profile"))), dtype, phases=PHASES)
    title = f"{display_path(folder)} ({graph.model_type}, {graph.layers} layers), profile {profile}, {plan.dtype}"
    return Outline(title=title, sides=("value",), graph=graph, plans=(plan,))


def outline_recipe(path: Path) -> Outline:
    """Both plans of a recipe, its toggles and what it expects. Raises MoeparityError."""
    recipe = reader.read_recipe(path)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    graph, config = _graph(folder)
    dtype = config.dtype or (_file_dtype(folder) if recipe.synthetic is None else UNDECLARED_DTYPE)
    variants = recipe.variants
    # A trace has no choices to show.
    sides = 1 if recipe.candidate.trace is not None else 2
    schedules = [settings(v.schedule, v.micro_batch, None, Where(path, v.line), v.placement.groups) for v in variants]
    may_have = [possible_phases(schedule) for schedule in schedules]
    phases = tuple(phase for phase in PHASES if any(phase in phases_of_side for phases_of_side in may_have))
    profiles = [load_profile(variant.profile, Where(path, variant.line)) for variant in variants]
    cases = cases_of(graph, dtype, phases, variants, profiles, Where(path))
    reference, candidate = (
        bound_side(graph, variant, profile, dtype, Where(path, variant.line), phases=cases)
        for variant, profile in zip(variants, profiles, strict=True)
    )
    recipe_toggles = tuple(toggles(reference, candidate, recipe.by))
    refuse_unshared(recipe.expect, Where(path), attribute=recipe.attribute)
    if not recipe.split:
        # The names of what a toggle is split into are known after the run only.
        refuse_unknown(recipe.expect, (toggle.name for toggle in recipe_toggles), Where(path))
    return Outline(
        title=(
            f"{display_path(path)}: {display_path(folder)} ({graph.model_type}, {graph.layers} layers), "
            f"reference {recipe.reference.profile}, candidate {recipe.candidate.named}"
        ),
        sides=("reference", "candidate")[:sides],
        graph=graph,
        plans=(reference.plan, candidate.plan)[:sides],
        toggles=recipe_toggles,
        schedules=tuple(starmap(_schedule, zip(schedules, may_have, strict=True)))[:sides],
        expectations=expectations(recipe.expect, graph, Where(path)),
    )


def _schedule(of: ScheduleSettings, phases: Sequence[Phase]) -> str:
    return described(of) if of.is_plain else f"{described(of)}. Its steps may be of {listed(phases)}"


def choices(node: Node, plans: Sequence[BoundGraph]) -> Iterator[Choice]:
    """What takes effect on a node on some side, in some phase: attributes, sites on edges, and a user's function."""
    active = [_active_by_phase(node, plan) for plan in plans]
    names = dict.fromkeys(name for phases in active for values in phases.values() for name in values)
    for name in names:
        entries = [{phase: values.get(name) for phase, values in phases.items()} for phases in active]
        in_effect = [entry for phases in entries for entry in phases.values() if entry is not None]
        values = [{phase: entry[0] if entry else ABSENT for phase, entry in phases.items()} for phases in entries]
        if _uncut(name, {value for phases in values for value in phases.values()}, node):
            continue
        origin, evidence = _stands_on(in_effect)
        by_side = tuple(_stands_on([entry for entry in phases.values() if entry is not None]) for phases in entries)
        yield Choice(name=name, values=tuple(map(by_phase, values)), origin=origin, evidence=evidence, by_side=by_side)


def _stands_on(entries: Sequence[Entry]) -> tuple[str, str]:
    """Where values were set, and how sure they are, each said once."""
    origin, evidence = ("; ".join(dict.fromkeys(entry[i] for entry in entries)) for i in (1, 2))
    return origin, evidence


def _active_by_phase(node: Node, plan: BoundGraph) -> dict[Case, dict[str, Entry]]:
    """What takes effect on a node in each phase; worked out once for phases that agree."""
    values = {id(in_phase): _active(node, in_phase) for in_phase in plan.distinct}
    return {phase: values[id(plan.at_phase(phase))] for phase in plan.phases}


def _active(node: Node, plan: BoundGraph) -> dict[str, Entry]:
    """What takes effect on a node on one side in one phase."""
    region = plan.replaced().get(node.name)
    if region is not None:
        return {"impl": (region.call, f"{region.where} ({region.rule.label})", region.rule.level)}
    values, fault = plan.active(node), plan.settings[node.name, FAULT]
    entries = {FAULT: (str(fault.value), fault.origin, fault.level or BY_RECIPE)} if fault.value else {}
    attributes = (attribute for attribute in plan.as_run(node).attributes if attribute.name in values)
    entries |= {a.name: _entry(str(values[a.name]), plan.setting(node, a)) for a in attributes}
    for consumer, (site, value) in plan.edges(node).items():
        name = f"{site}{EDGE}{role(consumer).rpartition('.')[2]}"
        entries[name] = _entry(str(value), plan.settings[node.name, f"{site}{EDGE}{consumer}"])
    return entries


def _entry(value: str, setting: Setting) -> Entry:
    return value, setting.origin, setting.level or UNKNOWN


def _uncut(name: str, values: set[str], node: Node) -> bool:
    """Whether this says that a node is not cut on any side: of most nodes it would say no more than that."""
    attribute = node.op.attribute(name)
    return attribute is not None and attribute.least is not None and values == {str(attribute.default)}


def _graph(folder: Path) -> tuple[Graph, Config]:
    config = Config(folder / "config.json")
    return expand(config), config


def _file_dtype(folder: Path) -> str:
    from moeparity.inputs.weights.checkpoint import Checkpoint
    from moeparity.inputs.weights.fit import file_dtype

    return file_dtype(Checkpoint(folder))
