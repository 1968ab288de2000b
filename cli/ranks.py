"""`moeparity ranks`: what the guards of a live job wrote."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import Html


def ranks(
    folder: Annotated[Path, typer.Argument(metavar="LOGDIR", help="Where the guards wrote: rank-0.jsonl ...")],
    json: Annotated[Path | None, typer.Option(help="Write the whole report to this file as JSON.")] = None,
    html: Html = None,
    profile_out: Annotated[
        Path | None, typer.Option(help="Write a profile of the choices that the environment report shows to this file.")
    ] = None,
) -> None:
    """Where a live job's ranks fell out of step, by their journals.

    Exit code 0 in step to the end; 1 they differ; 2 a journal could not be read; 3 a rank was lost without a word.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.output.status import state_of
    from moeparity.ranks.job_profile import profile_text
    from moeparity.ranks.report import job_report
    from moeparity.ranks.text import print_job

    with outputs({"--json": json, "--html": html, "--profile-out": profile_out}) as files:
        report = job_report(folder)
        if profile_out is not None:
            text = profile_text(folder, profile_out.stem)
            files.text("--profile-out", lambda: text)
        files.text("--json", report.to_json)
        files.page(("ranks", folder, state_of(report.exit_code)), partial(print_job, report))
        print_job(report, files.console())
    raise typer.Exit(report.exit_code)
