"""`moeparity engines`: the engine profiles, one of them, the difference of two, what a launch configuration implies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.errors import MoeparityError


def engines(
    first: Annotated[str | None, typer.Argument(metavar="[A]", help="A profile: its name, or a path to one.")] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="Another: how they differ.")] = None,
    graph: Annotated[str, typer.Option(help="The architecture on which they are compared.")] = "qwen3_moe",
    tensor: Annotated[int, typer.Option(min=1, help="Compared over so many ranks, tensor parallel.")] = 1,
    expert: Annotated[int, typer.Option(min=1, help="Compared over so many ranks, expert parallel.")] = 1,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A launch configuration of vLLM, SGLang, verl or NeMo-RL, or a file with their command line."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write what is found to this file as JSON.")] = None,
) -> None:
    """List the engine profiles, print one, or say how two differ. Or read them from a launch configuration.

    No weights are needed and nothing is computed.
    """
    from moeparity.cli.render import console
    from moeparity.output.files import refuse_unwritable, write_text
    from moeparity.plan.spec.schema import Placement
    from moeparity.profiles.compare import compare, describe, profiles, statements
    from moeparity.profiles.report import engines_json
    from moeparity.profiles.text import print_difference, print_profile, print_profiles

    if config is not None and first is not None:
        raise MoeparityError("engines: --config reads a launch configuration, A and B are profiles. Give one of both.")
    if json is not None:
        refuse_unwritable(json)
    if config is not None:
        from moeparity.profiles.launch import read
        from moeparity.profiles.launch.text import print_launch

        launch = read(config)
        print_launch(launch, console())
        text = launch.to_json()
    elif second is not None and first is not None:
        difference = compare(first, second, graph, Placement(tensor=tensor, expert=expert))
        print_difference(difference, console())
        text = engines_json(difference)
    elif first is not None:
        values = statements(first)
        print_profile(describe(first), values, console())
        text = engines_json(values)
    else:
        descriptions = profiles()
        print_profiles(descriptions, console())
        text = engines_json(descriptions)
    if json is not None:
        write_text(json, text)
