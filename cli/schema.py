"""`moeparity schema`: what an editor needs to complete and check the three files."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """The three kinds of files."""

    graph = "graph"
    profile = "profile"
    recipe = "recipe"


def schema(kind: Annotated[Kind, typer.Argument(help="Which of the three files.")]) -> None:
    """Print the JSON Schema of a graph, a profile or a recipe, for editors.

    In a file, `# yaml-language-server: $schema=profile.schema.json` names the file it was written to.
    """
    from moeparity.editor import json_schema

    print(json.dumps(json_schema(kind.value), indent=2, ensure_ascii=False))
