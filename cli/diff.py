"""`moeparity diff`: what two programs computed, compared call by call."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import Html

Folder = Annotated[Path, typer.Argument(help="A trace, as `moeparity capture` or `import` writes it.")]
LayoutOption = Annotated[
    Path | None,
    typer.Option("--layout", help="A file that says how ranks are put together and where tokens lie (kind: layout)."),
]
Json = Annotated[Path | None, typer.Option(help="Write the whole report to this file as JSON.")]
Markdown = Annotated[Path | None, typer.Option(help="Write a short report to this file as Markdown.")]


def diff(
    a: Folder,
    b: Folder,
    layout: LayoutOption = None,
    json: Json = None,
    markdown: Markdown = None,
    html: Html = None,
) -> None:
    """Where two traces begin to differ, and by how much.

    The first op or module whose inputs have equal bits and whose output has not; what is fused or cast otherwise is
    judged by what it gives. Exit code 0 equal bits, and nothing left out; 1 they differ; 2 a trace could not be read;
    3 inconclusive.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.errors import display_path
    from moeparity.evidence.diff.run import diff as compare
    from moeparity.evidence.diff.text import markdown as to_markdown
    from moeparity.evidence.diff.text import print_diff
    from moeparity.output.status import state_of

    with outputs({"--json": json, "--markdown": markdown, "--html": html}) as files:
        report = compare(a, b, layout)
        files.text("--json", report.to_json)
        files.text("--markdown", lambda: to_markdown(report))
        subject = f"{display_path(a)} {display_path(b)}"
        files.page(("diff", subject, state_of(report.exit_code)), partial(print_diff, report))
        print_diff(report, files.console())
    raise typer.Exit(report.exit_code)
