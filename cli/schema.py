"""`moeparity schema`: what an editor needs to complete and check the files."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """The kinds of files."""

    graph = "graph"
    profile = "profile"
    recipe = "recipe"
    log = "log"


def schema(kind: Annotated[Kind, typer.Argument(help="Which of the files.")]) -> None:
    """Print the JSON Schema of a kind of file, for editors.

    In a file, `# yaml-language-server: $schema=profile.schema.json` names the file it was written to.
    """
    from moeparity.plan.editor import json_schema

    print(json.dumps(json_schema(kind.value), indent=2, ensure_ascii=False))
