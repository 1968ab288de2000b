"""`moeparity diff`: compares two records of the same kind: traces, kept runs, or routes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.help import FILES
from moeparity.cli.options import Html, Json, Markdown
from moeparity.errors import MoeparityError, display_path
from moeparity.paths import is_folder, present

if TYPE_CHECKING:
    from moeparity.cli.outputs import Outputs

TRACES, RUNS, ROUTES = "traces", "kept runs", "files of routes"

A = Annotated[
    Path, typer.Argument(help="A trace (of `capture` or `import`), a run kept with --run, or recorded routes.")
]
B = Annotated[Path, typer.Argument(help="Another of the same kind.")]
LayoutOption = Annotated[
    Path | None,
    typer.Option(
        "--layout", help="Of traces: a file that says how ranks are put together and where tokens lie (kind: layout)."
    ),
]
TopK = Annotated[
    int | None, typer.Option(min=1, help="Of routes: experts per token, where a file has no shape (SGLang).")
]
Map = Annotated[
    Path | None,
    typer.Option(
        "--map",
        help="Of routes: write what became of each token in each layer to this safetensors file.",
        rich_help_panel=FILES,
    ),
]


def diff(
    a: A,
    b: B,
    layout: LayoutOption = None,
    top_k: TopK = None,
    json: Json = None,
    markdown: Markdown = None,
    html: Html = None,
    map_: Map = None,
) -> None:
    """Where two traces begin to differ, or two runs, or routes.

    For traces, the first op or module with equal bits in all inputs and other bits in its output; ops that are fused or
    cast differently are compared by their results. For kept runs, what changed: choices, weights, results, environment.
    For routes that two engines recorded of the same tokens, the flips; no weights are needed.

    Exit code 0 equal, and nothing left out (cost and environment of runs may differ; routes always give 0); 1 they
    differ; 2 one could not be read; 3 inconclusive.
    """
    from moeparity.cli.outputs import outputs

    kind = _kind(a, b)
    for option, value, of in (("--layout", layout, TRACES), ("--top-k", top_k, ROUTES), ("--map", map_, ROUTES)):
        if value is not None and kind != of:
            raise MoeparityError(f"diff: {option} is for {of}; {display_path(a)} and {display_path(b)} are {kind}.")
    wanted = {"--json": json, "--markdown": markdown, "--html": html, "--map": map_}
    with outputs(wanted, unprinted=("--map",)) as files:
        if kind == TRACES:
            code = _traces(a, b, layout, files)
        elif kind == RUNS:
            code = _runs(a, b, files)
        else:
            code = _routes(a, b, top_k, files)
    raise typer.Exit(code)


def _kind(a: Path, b: Path) -> str:
    """The kind of both records. Raises MoeparityError if one does not exist, and for two of different kinds."""
    kinds = []
    for path in (a, b):
        if not present(path):
            raise MoeparityError(f"{display_path(path)}: does not exist. Expected {TRACES}, {RUNS} or {ROUTES}.")
        if not is_folder(path):
            kinds.append(ROUTES)
        else:
            kinds.append(RUNS if present(path / "run.json") else TRACES)
    if kinds[0] != kinds[1]:
        raise MoeparityError(
            f"diff: {display_path(a)} is one of {kinds[0]}, {display_path(b)} one of {kinds[1]}. Give two of one kind."
        )
    return kinds[0]


def _traces(a: Path, b: Path, layout: Path | None, files: Outputs) -> int:
    from moeparity.evidence.diff.run import diff as compare
    from moeparity.evidence.diff.show import document, two_digits

    report, subject = compare(a, b, layout), f"{display_path(a)} {display_path(b)}"
    files.report(report, document(report, subject), two_digits(report, subject))
    return report.exit_code


def _runs(a: Path, b: Path, files: Outputs) -> int:
    from moeparity.bisection.runs.compare import compare
    from moeparity.bisection.runs.show import document

    comparison = compare(a, b)
    files.report(comparison, document(comparison))
    return comparison.exit_code


def _routes(a: Path, b: Path, top_k: int | None, files: Outputs) -> int:
    from moeparity.bisection.flips.document import document
    from moeparity.bisection.flips.run import logged_flips

    flipped = logged_flips(a, b, top_k=top_k)
    files.file("--map", flipped.write_map)
    files.report(flipped, document(flipped, f"{flipped.reference} {flipped.candidate}", "diff"))
    return flipped.exit_code
