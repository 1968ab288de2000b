"""`moeparity engines`: the engine profiles, one of them, the difference of two, what a launch configuration implies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from rich.console import Console


def engines(
    first: Annotated[str | None, typer.Argument(metavar="[A]", help="A profile: its name, or a path to one.")] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="Another: how they differ.")] = None,
    graph: Annotated[str, typer.Option(help="The architecture on which they are compared.")] = "qwen3_moe",
    tensor: Annotated[int, typer.Option(min=1, help="Compared over so many ranks, tensor parallel.")] = 1,
    expert: Annotated[int, typer.Option(min=1, help="Compared over so many ranks, expert parallel.")] = 1,
    config: Annotated[
        Path | None,
        typer.Option(help="A launch file: a script, YAML, TOML, a manifest, a unit, Python (docs/launch-files.md)."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write what is found to this file as JSON.")] = None,
) -> None:
    """List the engine profiles, print one, or say how two differ. Or read them from a launch configuration.

    No weights are needed and nothing is computed.
    """
    from moeparity.cli.outputs import outputs

    if config is not None and first is not None:
        raise MoeparityError("engines: --config reads a launch configuration, A and B are profiles. Give one of both.")
    with outputs({"--json": json}) as files:
        if config is not None:
            text, show = _launch(config)
        elif second is not None and first is not None:
            text, show = _difference(first, second, graph, (tensor, expert))
        else:
            text, show = _profiles(first)
        files.text("--json", lambda: text)
    show(files.console())


Answer = tuple[str, Callable[["Console"], None]]
"""An answer as JSON, and what prints it."""


def _launch(config: Path) -> Answer:
    """What a launch configuration implies."""
    from moeparity.profiles.launch import read
    from moeparity.profiles.launch.text import print_launch

    launch = read(config)
    return launch.to_json(), lambda out: print_launch(launch, out)


def _difference(first: str, second: str, graph: str, ranks: tuple[int, int]) -> Answer:
    """How two profiles differ over so many ranks, tensor and expert parallel."""
    from moeparity.plan.spec.variant_schema import Placement
    from moeparity.profiles.compare import compare
    from moeparity.profiles.report import engines_json
    from moeparity.profiles.text import print_difference

    difference = compare(first, second, graph, Placement(tensor=ranks[0], expert=ranks[1]))
    return engines_json(difference), lambda out: print_difference(difference, out)


def _profiles(name: str | None) -> Answer:
    """One profile in full, or all of them."""
    from moeparity.profiles.compare import describe, profiles, statements
    from moeparity.profiles.report import engines_json
    from moeparity.profiles.text import print_profile, print_profiles

    if name is None:
        descriptions = profiles()
        return engines_json(descriptions), lambda out: print_profiles(descriptions, out)
    values = statements(name)
    return engines_json(values), lambda out: print_profile(describe(name), values, out)
