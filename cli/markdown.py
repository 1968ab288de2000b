"""`--markdown FILE`: a text for a pull request or a CI summary, with its picture in a file beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.help import FILES
from moeparity.cli.outputs import Outputs

if TYPE_CHECKING:
    from moeparity.bisection.report import Report

OPTION, PICTURE = "--markdown", "the picture of --markdown"

Markdown = Annotated[
    Path | None,
    typer.Option(
        help="Write a short report to this file as Markdown, and a picture beside it (.svg).",
        rich_help_panel=FILES,
    ),
]


def files_of(path: Path | None) -> dict[str, Path | None]:
    """The files to write: the text and, if that goes to a file, the picture under the same name."""
    # A name to which no ending can be added, such as `.`, is refused when the text is written.
    is_file = path is not None and path not in {Path("-"), Path("/dev/stdout")} and path.name != ""
    return {OPTION: path, PICTURE: path.with_suffix(".svg") if path is not None and is_file else None}


def write(files: Outputs, text: Callable[[str | None], str], draw: Callable[[], str | None]) -> None:
    """Write both; `text` gets the name of the picture, None if there is none. Raises MoeparityError."""
    target = files.files.get(PICTURE)
    drawn = draw() if target is not None else None
    if drawn is not None:
        files.text(PICTURE, lambda: drawn)
    files.text(OPTION, lambda: text(target.name if target is not None and drawn is not None else None))


def write_report(files: Outputs, report: Report) -> None:
    """Write a bisection's report as JSON, as a page, and as Markdown with its picture. Raises MoeparityError."""
    from moeparity.bisection.markdown import drawing, markdown

    files.text("--json", report.to_json)
    files.text("--html", report.to_html)
    write(files, lambda drawn: markdown(report, drawn), lambda: drawing(report))
