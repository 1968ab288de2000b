"""Makes the two sides of a recipe from launch files: the trainer becomes the reference, the server the candidate."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeparity.bisection.init.commented import adapter_lines, side_block, unused_lines, used_lines
from moeparity.bisection.init.launched_side import REFERENCE, Launched
from moeparity.bisection.init.requests import Requested, defaults, requested, with_requests
from moeparity.errors import SpecError, Where
from moeparity.plan.engine_profile import Profile, load_profile
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.sides import bound_side, cases_of
from moeparity.plan.spec.variant_schema import Placement, Variant
from moeparity.plan.toggles import SEMANTICS, Toggle, toggles
from moeparity.profiles.launch import read
from moeparity.profiles.launch.merged_profile import combined, load_combined
from moeparity.profiles.launch.report import Launch, LaunchSide


def other_functions(
    graph: Graph, dtype: str, variants: Sequence[Variant], profiles: Sequence[Profile], where: Where
) -> tuple[str, ...]:
    """A sentence for each choice of kind `semantics` that differs between trainer and server and that a flag could
    change or that decides how log-probabilities are made. Other semantic choices, such as a router's rule for ties, are
    left to the bisection, which shows whether they have an effect. () if a side can't be bound.
    """
    try:
        cases = cases_of(graph, dtype, (FORWARD,), variants, profiles, where)
        bound = zip(variants, profiles, strict=True)
        trainer, server = (bound_side(graph, v, profile, dtype, where, phases=cases) for v, profile in bound)
        of_both = toggles(trainer, server)
    except SpecError:
        # `LaunchedSides.obstacle` tells why the recipe can't run.
        return ()
    return tuple(map(_words, (toggle for toggle in of_both if toggle.kind == SEMANTICS and _matters(toggle))))


def _matters(toggle: Toggle) -> bool:
    return toggle.has_flag or any(member.node.op.role.reports for member in toggle.members)


def _words(toggle: Toggle) -> str:
    flags = (("server", toggle.candidate_changed_by), ("trainer", toggle.reference_changed_by))
    cure = " or ".join(f"on the {side} set {flag}" for side, flag in flags if flag) or "no flag is known"
    return f"{toggle.name} is {toggle.reference} in the trainer, {toggle.candidate} in the server: {cure}"


ROLES = ("trainer", "server")
"""The role in a job of the reference and of the candidate, in this order."""
_SERVERS = ("server", "rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedSides:
    """Both sides of a recipe as launch files start them; empty without launch files.

    text: their part of the recipe. profiles: files to be written beside it. warnings: options that no profile covers.
    bases: by which file each launched side is known, and whether the engine wrote it or it starts the engine.
    other_models: launch files that name a model that is clearly not the checkpoint. other_functions: choices by which
    the sides compute another function, and what removes them. lacks_adapter: a file starts a LoRA adapter, and none was
    given. obstacle: why the recipe cannot run, "" if it can.
    temperature: the sampler's, None if not set.
    """

    text: str = ""
    profiles: dict[Path, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    other_models: tuple[str, ...] = ()
    other_functions: tuple[str, ...] = ()
    lacks_adapter: bool = False
    obstacle: str = ""
    temperature: float | None = None


def profile_file(out: Path, role: str) -> Path:
    """The file for a side's profile, if no shipped profile covers the side; it lies beside the recipe `out`."""
    return out.with_name(f"{out.stem}.{role}.yaml")


def launched(checkpoint: Path, server: Path | None, trainer: Path | None) -> tuple[Launched, Launched]:
    """The trainer's side and the server's; one file may start both. If only one side is launched it becomes the
    candidate, and transformers with eager attention the reference. Raises SpecError for a side that no shipped profile
    covers.
    """
    files = dict.fromkeys(path for path in (server, trainer) if path is not None)
    launches = {path: read(path, checkpoint) for path in files}
    trains = _side(launches, checkpoint, trainer or server, ("trainer",), "--trainer", needed=trainer is not None)
    serves = _side(launches, checkpoint, server or trainer, _SERVERS, "--server", needed=server is not None)
    if trains is not None and serves is not None:
        return trains, serves
    alone = serves or trains
    assert alone is not None
    return _held_to(alone.launch), alone


def _side(
    launches: Mapping[Path, Launch],
    checkpoint: Path,
    path: Path | None,
    roles: Sequence[str],
    option: str,
    *,
    needed: bool,
) -> Launched | None:
    """The side with one of these roles that the file starts; None if it starts none and `needed` is False."""
    assert path is not None
    launch = launches[path]
    side = next((side for side in launch.sides if side.role in roles), None)
    if side is not None and side.profile:
        return Launched(launch=launch, side=side, checkpoint=checkpoint)
    if side is None and not needed:
        return None
    kinds = ", ".join(f"{s.role} ({launch.engine})" for s in launch.sides)
    says = "has none" if side is None else "has one that no shipped profile speaks of"
    raise SpecError(
        f"{Where(path)}: a {'trainer' if option == '--trainer' else 'server'} is needed, and it {says}: it "
        f"starts {kinds}. Give the launch file of one with {option}."
    )


def _held_to(launch: Launch) -> Launched:
    """transformers with eager attention, as the reference for a side that was launched alone."""
    side = LaunchSide(role=REFERENCE, profile="hf-eager", further=(), placement={}, dtype=None)
    model = Launch(
        file="",
        engine="transformers",
        version="",
        source="",
        model=launch.model,
        warnings=(),
        sides=(side,),
        decisions=(),
        settings=(),
        unstated=(),
        irrelevant=(),
        together=(),
        ignored=(),
    )
    return Launched(launch=model, side=side)


def sides_of_recipe(launched_sides: tuple[Launched, Launched], graph: Graph, dtype: str, out: Path) -> LaunchedSides:
    """Both sides as text for the recipe `out`, on a graph whose checkpoint has `dtype`."""
    temperature = _requests(launched_sides).get("temperature")
    launched_sides = (
        on_graph(launched_sides[0], launched_sides, graph),
        on_graph(launched_sides[1], launched_sides, graph),
    )
    profiles: dict[Path, str] = {}
    blocks, obstacles = [], []
    for name, launched in zip(("reference", "candidate"), launched_sides, strict=True):
        profile = launched.side.profile
        path = profile_file(out, launched.role)
        if launched.side.further or launched.side.sets:
            profiles[path] = combined(launched.side, launched.launch, f"{out.stem}_{launched.role}")
            profile = f"./{path.name}"
        is_said = name == "candidate" and launched.launch.file == launched_sides[0].launch.file
        words = [*used_lines(launched, dtype), *(() if is_said else unused_lines(launched.launch))]
        words += adapter_lines(launched, graph)
        blocks.append(side_block(name, words, launched.side, profile, launched.side.dtype or dtype))
        reason = _obstacle(launched, profiles.get(path), graph, dtype, out)
        obstacles += [f"{name}: {reason}"] if reason else []
    return LaunchedSides(
        text="\n".join(blocks),
        profiles=profiles,
        warnings=tuple(dict.fromkeys(line for launched in launched_sides for line in launched.warnings(graph))),
        bases=tuple(f"{each.role}: {each.launch.basis}" for each in launched_sides if each.side.role != REFERENCE),
        other_models=tuple(
            dict.fromkeys(launched.launch.another_model for launched in launched_sides if launched.launch.another_model)
        ),
        other_functions=() if obstacles else _other_functions(launched_sides, profiles, graph, dtype, out),
        lacks_adapter=not graph.adapted and any(launched.adapts for launched in launched_sides),
        obstacle="; ".join(obstacles),
        temperature=None if temperature is None else temperature.value,
    )


def on_graph(launched: Launched, launched_sides: Sequence[Launched], graph: Graph) -> Launched:
    """One of the launched sides, without values for addresses that match no node of the model, and, if its
    log-probabilities are of what requests ask for, with that.
    """
    side = with_requests(launched.side, launched.launch.settings, _requests(launched_sides))
    return _in_graph(replace(launched, side=side), graph)


def _requests(launched_sides: Sequence[Launched]) -> Mapping[str, Requested]:
    """What is asked of the sampler. The server's launch file is asked first, then the trainer's, since a trainer passes
    its own to the server that it starts. What is left open a server takes from the checkpoint. A trainer's rollouts
    take nothing from there: vLLM looks at it for HTTP requests and calls without SamplingParams alone (read: vLLM
    0.32.0, entrypoints/llm.py and openai/*/protocol.py).
    """
    stated = [setting for launched in reversed(launched_sides) for setting in launched.launch.settings]
    samples = launched_sides[-1]
    return requested([*stated, *(defaults(stated, samples.checkpoint) if samples.side.role == "server" else ())])


def as_variant(launched: Launched, name: str) -> tuple[Variant, Profile]:
    """A side of `on_graph` as a recipe's variant, and its profile, which is called `name` if it is not a shipped one.
    Raises SpecError.
    """
    side = launched.side
    text = combined(side, launched.launch, name) if side.further or side.sets else None
    return _loaded(launched, text, Path(name))


def _in_graph(launched: Launched, graph: Graph) -> Launched:
    """The launched side without values for addresses that match no node of the model."""
    there = {
        key: value
        for key, value in launched.side.selects.items()
        if any(fnmatch.fnmatchcase(node.name, key.partition(":")[0].replace("**", "*")) for node in graph.nodes)
    }
    return replace(launched, side=replace(launched.side, selects=there))


def _obstacle(launched: Launched, profile: str | None, graph: Graph, dtype: str, out: Path) -> str:
    """Why this side does not run on the model, in the words of the error; "" if it runs."""
    try:
        variant, loaded = _loaded(launched, profile, out)
        bound_side(graph, variant, loaded, dtype, Where(out))
    except SpecError as error:
        return str(error).partition(": ")[2] or str(error)
    return ""


def _loaded(launched: Launched, profile: str | None, out: Path) -> tuple[Variant, Profile]:
    """A side as a recipe's variant, and its profile; `profile` is the profile's text if it is not a shipped one. Raises
    SpecError.
    """
    side = launched.side
    placement = Placement.model_validate(dict(side.placement))
    loaded = load_combined(profile) if profile else load_profile(side.profile, Where(out))
    fields = {"profile": side.profile, "placement": placement, "dtype": side.dtype, "set": dict(side.selects)}
    return Variant.model_validate(fields), loaded


def _other_functions(
    launched_sides: tuple[Launched, Launched], profiles: Mapping[Path, str], graph: Graph, dtype: str, out: Path
) -> tuple[str, ...]:
    loaded = [_loaded(launched, profiles.get(profile_file(out, launched.role)), out) for launched in launched_sides]
    return other_functions(graph, dtype, [variant for variant, _ in loaded], [p for _, p in loaded], Where(out))
