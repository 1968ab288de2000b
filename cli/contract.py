"""`moeparity contract`: what one side of a recipe claims to run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class SideName(StrEnum):
    """The sides of a recipe."""

    reference = "reference"
    candidate = "candidate"


def contract(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")],
    side: Annotated[SideName, typer.Option(help="Whose choices.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    environment: Annotated[
        Path | None,
        typer.Option(metavar="LOGDIR", help="Claim the environment too that a guarded job reported in this folder."),
    ] = None,
) -> None:
    """Write what a side claims to run, to compare its engine with.

    Weights, environment, profile, placement and schedule, each with its digest; `moeparity.ranks.hold` refuses a
    process that breaks one. Nothing is run; every weight is read.
    """
    from moeparity.bisection.contract import contract_of
    from moeparity.cli.outputs import outputs
    from moeparity.errors import counted

    with outputs({"--out": out}) as files:
        with files.progress() as progress:
            claims = contract_of(recipe, side.value, environment, progress)
        files.text("--out", claims.to_json)
        choices = sum(len(node.choices) for node in claims.profile.nodes.values())
        files.print(
            f"{out}: {claims.side} of {claims.recipe}: {counted(len(claims.weights.tensors), 'tensor')}, "
            f"{counted(choices, 'choice')} of {counted(len(claims.profile.nodes), 'node')}, "
            f"{counted(len(claims.environment.fields), 'field')} of the environment"
        )
