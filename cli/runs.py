"""`moeparity runs`: lists runs that were kept with `--run`, or shows one again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.bisection import Sections, Verbose
from moeparity.cli.markdown import Markdown, files_of, write_report
from moeparity.cli.options import Html, Json
from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from moeparity.bisection.runs.results import Result
    from moeparity.output.blocks import Document

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that --run has written.")]


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look, two folders deep.")] = Path(),
) -> None:
    """List kept runs: verdict, figure, when, machine, finished or not."""
    from moeparity.bisection.runs.show import listed, runs_below
    from moeparity.cli.render import show

    show(listed(runs_below(folder), str(folder)))


def show_run(
    run: Run,
    json: Json = None,
    html: Html = None,
    markdown: Markdown = None,
    verbose: Verbose = False,
    section: Sections = None,
) -> None:
    """Print the report of a finished run again. Nothing is computed.

    The exit code is that of the run's own command.
    """
    from moeparity.bisection.report import Report
    from moeparity.bisection.runs.results import read_report
    from moeparity.bisection.sections import asked_for, print_report
    from moeparity.cli.outputs import outputs

    sections = asked_for(section or (), all_of_them=verbose)
    with outputs({"--json": json, "--html": html, **files_of(markdown)}) as files:
        result = read_report(run)
        if isinstance(result, Report):
            write_report(files, result)
            print_report(result, files.console(), sections)
        elif markdown is not None:
            raise MoeparityError(f"runs show: --markdown is for a bisection; {run} is none. Leave it out.")
        else:
            files.report(result, _document(result, run))
    raise typer.Exit(result.exit_code)


def _document(result: Result, run: Path) -> Document:
    """A result as its own command shows it."""
    from moeparity.bisection.flips import document as flips
    from moeparity.bisection.mine import show as mine
    from moeparity.bisection.mine.report import Mined
    from moeparity.bisection.report import Report
    from moeparity.bisection.sections import document
    from moeparity.bisection.sweep import show as sweep
    from moeparity.bisection.sweep.report import Sweep

    if isinstance(result, Report):
        return document(result)
    if isinstance(result, Sweep):
        return sweep.document(result)
    return mine.document(result, str(run)) if isinstance(result, Mined) else flips.document(result, str(run))
