"""`moeparity runs`, `report` and `compare`: runs that were kept with `--run`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.markdown import files_of, write_report
from moeparity.cli.options import Html
from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from collections.abc import Collection

    from rich.console import Console

    from moeparity.bisection.runs.results import Result
    from moeparity.output.html.page import PageSection

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that --run has written.")]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look, two folders deep.")] = Path(),
) -> None:
    """List kept runs: verdict, figure, when, machine, finished or not."""
    from moeparity.bisection.runs.listing import runs_below
    from moeparity.bisection.runs.text import print_runs
    from moeparity.cli.render import console

    print_runs(runs_below(folder), str(folder), console())


def report(
    run: Run,
    json: Annotated[Path | None, typer.Option(help="Write the whole report to this file as JSON.")] = None,
    html: Html = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Of a bisection: write a short report as Markdown, and a picture beside it.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every section of the report.")] = False,
    section: Annotated[
        list[str] | None, typer.Option(help="Print this section too, of a bisection. May be repeated.")
    ] = None,
) -> None:
    """Print the report of a finished run again. Nothing is computed.

    The exit code is that of the run's own command.
    """
    from moeparity.bisection.page import page
    from moeparity.bisection.report import Report
    from moeparity.bisection.runs.results import read_report
    from moeparity.bisection.text import asked_for
    from moeparity.cli.outputs import outputs
    from moeparity.output.status import state_of

    sections = asked_for(section or (), all_of_them=verbose)
    with outputs({"--json": json, "--html": html, **files_of(markdown)}) as files:
        result = read_report(run)
        if isinstance(result, Report):
            write_report(files, result)
            files.text("--html", lambda: page(result).to_html())
        elif markdown is not None:
            raise MoeparityError(f"report: --markdown is for a bisection; {run} is none. Leave it out.")
        else:
            files.text("--json", result.to_json)
            state = state_of(result.exit_code)
            files.page(
                ("report", run, state), lambda console: _print(result, console, sections), partial(_pictures, result)
            )
    _print(result, files.console(), sections)
    raise typer.Exit(result.exit_code)


def _print(result: Result, out: Console, sections: Collection[str]) -> None:
    """A result as its own command prints it."""
    from moeparity.bisection.mine.report import Mined
    from moeparity.bisection.mine.text import print_mined
    from moeparity.bisection.report import Report
    from moeparity.bisection.sweep.report import Sweep
    from moeparity.bisection.sweep.text import print_sweep
    from moeparity.bisection.text import print_report
    from moeparity.cli.flips import print_flipped

    if isinstance(result, Report):
        print_report(result, out, sections)
    elif isinstance(result, Sweep):
        print_sweep(result, out)
    elif isinstance(result, Mined):
        print_mined(result, out, None)
    else:
        print_flipped(result, out)


def _pictures(result: Result) -> PageSection | None:
    """The pictures that its own command's page has; that of a bisection is a page of its own."""
    from moeparity.bisection.mine import page as mine
    from moeparity.bisection.mine.report import Mined
    from moeparity.bisection.page import flip_pictures
    from moeparity.bisection.report import Report
    from moeparity.bisection.sweep import page as sweep
    from moeparity.bisection.sweep.report import Sweep

    if isinstance(result, Sweep):
        return sweep.pictures(result)
    if isinstance(result, Mined):
        return mine.pictures(result)
    return None if isinstance(result, Report) else flip_pictures(result.report)


def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="A folder that --run has written.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another: what changed since the first.")],
    json: Annotated[Path | None, typer.Option(help="Write the comparison to this file as JSON.")] = None,
) -> None:
    """What changed between two kept runs: choices, weights, results.

    Also the environment, the first divergence, and what each toggle makes.
    Exit code 0 nothing but cost and environment, 1 anything else, 2 bad input, 3 reports that cannot be compared.
    """
    from moeparity.bisection.runs.compare import compare as run_comparison
    from moeparity.bisection.runs.text import print_comparison
    from moeparity.cli.outputs import outputs

    with outputs({"--json": json}) as files:
        comparison = run_comparison(first, second)
        files.text("--json", comparison.to_json)
    print_comparison(comparison, files.console())
    raise typer.Exit(comparison.exit_code)
