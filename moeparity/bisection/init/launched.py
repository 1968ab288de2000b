"""The two sides of a recipe from launch files: the trainer is the reference, the server the candidate."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moeparity.errors import SpecError, Where
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Graph
from moeparity.plan.sides import bound_side
from moeparity.plan.spec.variant_schema import Placement, Variant
from moeparity.profiles.launch import read
from moeparity.profiles.launch.merged_profile import combined, load_combined
from moeparity.profiles.launch.report import Launch, LaunchSide
from moeparity.profiles.launch.text import warning_line

_WIDTH = 116
ROLES = ("trainer", "server")
"""Who is the reference and who the candidate."""
_SERVERS = ("server", "rollout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """One side as it was launched, and the launch it comes from."""

    launch: Launch
    side: LaunchSide

    @property
    def warnings(self) -> tuple[str, ...]:
        """What decides this side's numerics and has no profile, a line each."""
        return tuple(warning_line(w) for w in self.launch.warnings if w.role == self.side.role)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedSides:
    """Both sides of a recipe: `text` of the recipe, profiles to be written beside it, and what has no profile.

    `other_models` say which launch file names a model that is plainly not the checkpoint's. `obstacle` says why the
    recipe cannot run; empty where it can. `temperature` is the sampler's, None where not set.
    """

    text: str
    profiles: dict[Path, str]
    warnings: tuple[str, ...]
    other_models: tuple[str, ...]
    obstacle: str
    temperature: float | None


def profile_file(out: Path, role: str) -> Path:
    """Where the profile of a side goes that no shipped one is, beside the recipe `out`."""
    return out.with_name(f"{out.stem}.{role}.yaml")


def launched(checkpoint: Path, server: Path | None, trainer: Path | None) -> tuple[Launched, Launched]:
    """The trainer's side and the server's; one file may start both. Raises SpecError where one is missing."""
    files = dict.fromkeys(path for path in (server, trainer) if path is not None)
    launches = {path: read(path, checkpoint) for path in files}
    wanted = (("--trainer", trainer or server, ("trainer",)), ("--server", server or trainer, _SERVERS))
    sides = []
    for option, path, roles in wanted:
        assert path is not None
        launch = launches[path]
        side = next((side for side in launch.sides if side.role in roles), None)
        if side is None or not side.profile:
            kinds = ", ".join(f"{s.role} ({launch.engine})" for s in launch.sides)
            says = "has none" if side is None else "has one that no shipped profile speaks of"
            raise SpecError(
                f"{Where(path)}: a {'trainer' if option == '--trainer' else 'server'} is needed, and it {says}: it "
                f"starts {kinds}. Give the launch file of one with {option}."
            )
        sides.append(Launched(launch=launch, side=side))
    return sides[0], sides[1]


def sides_of_recipe(launched_sides: tuple[Launched, Launched], graph: Graph, dtype: str, out: Path) -> LaunchedSides:
    """Both sides as the recipe `out` has them, on a graph whose checkpoint has `dtype`."""
    temperature = _temperature(launched_sides)
    launched_sides = launched_sides[0], _sampled(launched_sides[1], temperature)
    profiles: dict[Path, str] = {}
    blocks, obstacles = [], []
    for name, role, launched in zip(("reference", "candidate"), ROLES, launched_sides, strict=True):
        profile = launched.side.profile
        if launched.side.further or launched.side.sets:
            path = profile_file(out, role)
            profiles[path] = combined(launched.side, launched.launch, f"{out.stem}_{role}")
            profile = f"./{path.name}"
        unset = (
            ()
            if name == "candidate" and launched.launch.file == launched_sides[0].launch.file
            else _unused_lines(launched.launch)
        )
        blocks.append(
            _block(name, [*_used_lines(role, launched), *unset], launched.side, profile, launched.side.dtype or dtype)
        )
        reason = _obstacle(launched, profiles.get(profile_file(out, role)), graph, dtype, out)
        obstacles += [f"{name}: {reason}"] if reason else []
    return LaunchedSides(
        text="\n".join(blocks),
        profiles=profiles,
        warnings=tuple(dict.fromkeys(line for launched in launched_sides for line in launched.warnings)),
        other_models=tuple(
            dict.fromkeys(launched.launch.another_model for launched in launched_sides if launched.launch.another_model)
        ),
        obstacle="; ".join(obstacles),
        temperature=temperature,
    )


def comments(lines: Sequence[str], indent: str = "") -> str:
    """Lines as comments of a recipe, wrapped; empty where there are none."""
    first, further = f"{indent}# ", f"{indent}#   "
    # Paths and options are not broken, so that they can be searched for.
    marked = (
        textwrap.wrap(
            line,
            _WIDTH,
            initial_indent=first,
            subsequent_indent=further,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )
    return "".join(f"{line}\n" for wrapped in marked for line in wrapped)


def _block(name: str, words: Sequence[str], side: LaunchSide, profile: str, dtype: str) -> str:
    """One side of the recipe, behind comments on each value that it took or left."""
    lines = [f"{name}:", comments(words, "  ").rstrip("\n"), f"  profile: {profile}"]
    if side.placement:
        inner = ", ".join(f"{axis}: {json.dumps(ranks)}" for axis, ranks in side.placement.items())
        lines.append(f"  placement: {{{inner}}}")
    return "\n".join([*lines, f"  dtype: {dtype}", "  micro_batch: 8"])


def _used_lines(role: str, launched: Launched) -> Iterator[str]:
    launch = launched.launch
    yield f"The {role}: {launch.engine} {launch.version}, as {launch.file} starts it."
    for setting in launch.settings:
        if setting.given and setting.role == launched.side.role:
            yield f"{setting.where}: {setting.name} {setting.value}: {setting.implies}"
    for decision in launch.decisions:
        if decision.role == launched.side.role:
            yield f"{launch.engine} decides: {decision.says} [{decision.source}]"


def _unused_lines(launch: Launch) -> Iterator[str]:
    for key in launch.irrelevant:
        yield f"{key.where}: left {key.name}: {key.hint or 'it changes no log-probability'}"
    for key in launch.ignored:
        yield f"{key.where}: left {key.name}: it was not looked at"


def _obstacle(launched: Launched, profile: str | None, graph: Graph, dtype: str, out: Path) -> str:
    """Why this side does not run on the model, in the words of what refuses it; empty where it does."""
    try:
        loaded = load_combined(profile) if profile else load_profile(launched.side.profile, Where(out))
        variant = Variant(
            profile=launched.side.profile, placement=Placement.model_validate(dict(launched.side.placement))
        )
        bound_side(graph, variant, loaded, launched.side.dtype or dtype, Where(out))
    except SpecError as error:
        return str(error).partition(": ")[2] or str(error)
    return ""


def _temperature(launched_sides: tuple[Launched, Launched]) -> float | None:
    """The sampler's temperature, by either launch file: a trainer asks a server of its own for it. None: not set."""
    names = ("temperature", "rollout_temperature")
    settings = (s for launched in reversed(launched_sides) for s in launched.launch.settings)
    values = [s.value for s in settings if s.given and s.name.rpartition(".")[2] in names]
    try:
        return float(values[0]) if values else None
    except ValueError:
        return None


def _sampled(server: Launched, temperature: float | None) -> Launched:
    """A server started by itself, whose log-probabilities may be of logits over the temperature of a request."""
    settings = {setting.name: setting.value for setting in server.launch.settings}
    processed = settings.get("logprobs_mode", "").startswith("processed")
    over = processed or settings.get("SGLANG_RETURN_ORIGINAL_LOGPROB") == "false"
    if server.side.role != "server" or temperature in (None, 0, 1) or not over:
        return server
    sets = {**server.side.sets, "log_softmax:temperature": temperature}
    return replace(server, side=replace(server.side, sets=sets))
