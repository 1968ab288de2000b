"""`moeparity show`: prints what is known before anything runs: plan, ops, profiles, launch file, schemas."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.options import Json
from moeparity.cli.schemas import FileKind
from moeparity.errors import MoeparityError
from moeparity.output.words import printable
from moeparity.paths import is_folder

if TYPE_CHECKING:
    from moeparity.output.blocks import Block


def plan(
    path: Annotated[Path, typer.Argument(help="A recipe, or a checkpoint folder.")],
    profile: Annotated[str, typer.Option(help="With a checkpoint: the profile to bind.")] = "hf-eager",
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the graph for Mermaid instead.")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print the graph for Graphviz instead.")] = False,
) -> None:
    """Print the bound plan: every choice, its value and what set it. For a recipe also the toggles.

    A graph shows each kind of layer once, and for a recipe the nodes on which the sides differ.
    """
    from moeparity.bisection.outline import outline_checkpoint, outline_recipe
    from moeparity.cli.render import plan_blocks, show

    if mermaid and dot:
        raise MoeparityError("show plan: --mermaid and --dot are two forms of one graph. Give one of them.")
    outline = outline_checkpoint(path, profile) if is_folder(path) else outline_recipe(path)
    if mermaid or dot:
        from moeparity.bisection import diagram
        from moeparity.bisection.drawing import drawing

        print(printable((diagram.mermaid if mermaid else diagram.dot)(drawing(outline))))
    else:
        show(plan_blocks(outline))


def ops(
    name: Annotated[str | None, typer.Argument(help="One op, in full.")] = None,
    fidelity: Annotated[
        bool,
        typer.Option("--fidelity", help="Print instead, for each value, how sure it is that an engine computes so."),
    ] = False,
    json: Annotated[Path | None, typer.Option(help="With --fidelity: write it to this file as JSON.")] = None,
) -> None:
    """Print the ops and every choice that they leave open."""
    from moeparity.cli.render import op_blocks, op_list, show
    from moeparity.ops.registry import find

    op = None if name is None else find(name)
    if fidelity:
        from moeparity.cli.fidelity import show_fidelity

        show_fidelity(op, json)
    elif json is not None:
        raise MoeparityError("show ops: --json writes what --fidelity finds. Give --fidelity too.")
    else:
        show([op_list()] if op is None else op_blocks(op))


def engines(
    first: Annotated[str | None, typer.Argument(metavar="[A]", help="A profile: its name, or a path to one.")] = None,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help="Another: how they differ.")] = None,
    graph: Annotated[str, typer.Option(help="The architecture on which they are compared.")] = "qwen3_moe",
    tensor: Annotated[int, typer.Option(min=1, help="Compare them over this many tensor-parallel ranks.")] = 1,
    expert: Annotated[int, typer.Option(min=1, help="Compare them over this many expert-parallel ranks.")] = 1,
    json: Json = None,
) -> None:
    """List the engine profiles, print one, or say how two differ.

    No weights are needed and nothing is computed.
    """
    from moeparity.cli.outputs import outputs

    with outputs({"--json": json}) as files:
        if second is not None and first is not None:
            text, blocks = _difference(first, second, graph, (tensor, expert))
        else:
            text, blocks = _profiles(first)
        files.text("--json", lambda: text)
    files.show(blocks)


def formats(
    name: Annotated[str | None, typer.Argument(help="One format, in full.")] = None,
) -> None:
    """List the formats of quantised weights, or print one.

    One in full: its tensors, codes and scale rule.
    """
    from moeparity.cli.render import format_blocks, format_list, show
    from moeparity.inputs.weights.formats import format_of

    show([format_list()] if name is None else format_blocks(format_of(name)))


Answer = tuple[str, Iterable["Block"]]
"""An answer: its JSON, and the blocks that show it."""


def _difference(first: str, second: str, graph: str, ranks: tuple[int, int]) -> Answer:
    """How two profiles differ, over these numbers of tensor-parallel and expert-parallel ranks."""
    from moeparity.plan.spec.variant_schema import Placement
    from moeparity.profiles.compare import compare
    from moeparity.profiles.report import engines_json
    from moeparity.profiles.show import difference_of

    difference = compare(first, second, graph, Placement(tensor=ranks[0], expert=ranks[1]))
    return engines_json(difference), difference_of(difference)


def _profiles(name: str | None) -> Answer:
    """One profile in full, or a list of all."""
    from moeparity.profiles.compare import describe, profiles, statements
    from moeparity.profiles.report import engines_json
    from moeparity.profiles.show import in_full, profile_list

    if name is None:
        descriptions = profiles()
        return engines_json(descriptions), profile_list(descriptions)
    values = statements(name)
    return engines_json(values), in_full(describe(name), values)


def launch(
    file: Annotated[
        Path,
        typer.Argument(help="A launch file: a script, YAML, TOML, a manifest, a unit, Python (docs/launch-files.md)."),
    ],
    json: Json = None,
) -> None:
    """What a launch file implies, each choice with its line.

    And what it may change that no profile has.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.profiles.launch import read
    from moeparity.profiles.launch.show import blocks

    with outputs({"--json": json}) as files:
        implied = read(file)
        files.text("--json", implied.to_json)
    files.show(blocks(implied))


def schema(
    kind: Annotated[FileKind, typer.Argument(help="Which of the files; from `report` on those that are written.")],
) -> None:
    """Print the JSON Schema of a kind of file, or of report.

    Editors check files by it. In one, `# yaml-language-server: $schema=profile.schema.json` names the file it was
    written to.
    """
    import json

    from moeparity.cli.schemas import report_schema
    from moeparity.plan.editor import json_schema
    from moeparity.plan.spec.reader import KINDS

    printed = json_schema(kind.value) if kind.value in KINDS else report_schema(kind.value)
    print(json.dumps(printed, indent=2, ensure_ascii=False))
