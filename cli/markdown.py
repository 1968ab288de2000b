"""`--markdown FILE`: a text for a pull request or the summary of a step, and its picture in a file beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.outputs import Outputs

if TYPE_CHECKING:
    from moeparity.bisection.report import Report

OPTION, PICTURE = "--markdown", "the picture of --markdown"

Markdown = Annotated[
    Path | None, typer.Option(help="Write a short report to this file as Markdown, and a picture beside it (.svg).")
]


def files_of(path: Path | None) -> dict[str, Path | None]:
    """What is written: the text and, where that goes to a file, the picture of the same name."""
    # A name without anything to put an ending behind, such as `.`, is refused as the text's.
    is_file = path is not None and path not in {Path("-"), Path("/dev/stdout")} and path.name != ""
    return {OPTION: path, PICTURE: path.with_suffix(".svg") if path is not None and is_file else None}


def write(files: Outputs, text: Callable[[str | None], str], draw: Callable[[], str | None]) -> None:
    """Write both; `text` is given the name of the picture, None where there is none. Raises MoeparityError."""
    target = files.files.get(PICTURE)
    drawn = draw() if target is not None else None
    if drawn is not None:
        files.text(PICTURE, lambda: drawn)
    files.text(OPTION, lambda: text(target.name if target is not None and drawn is not None else None))


def write_report(files: Outputs, report: Report) -> None:
    """A bisection's report: as JSON, and both of these. Raises MoeparityError."""
    from moeparity.bisection.markdown import drawing, markdown

    files.text("--json", report.to_json)
    write(files, lambda drawn: markdown(report, drawn), lambda: drawing(report))
