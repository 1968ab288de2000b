"""`moeparity ranks`: reports what the guards of a live job wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import Html, Json


def ranks(
    folder: Annotated[Path, typer.Argument(metavar="LOGDIR", help="Where the guards wrote: rank-0.jsonl ...")],
    json: Json = None,
    html: Html = None,
    profile_out: Annotated[
        Path | None, typer.Option(help="Write a profile of the choices that the environment report shows to this file.")
    ] = None,
) -> None:
    """Where a live job's ranks fell out of step, by their journals.

    Exit code 0 in step to the end; 1 they differ; 2 a journal could not be read; 3 a rank was lost without a word.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.ranks.job_profile import profile_text
    from moeparity.ranks.report import job_report
    from moeparity.ranks.show import document

    with outputs({"--json": json, "--html": html, "--profile-out": profile_out}) as files:
        report = job_report(folder)
        if profile_out is not None:
            text = profile_text(folder, profile_out.stem)
            files.text("--profile-out", lambda: text)
        files.report(report, document(report, str(folder)))
    raise typer.Exit(report.exit_code)
