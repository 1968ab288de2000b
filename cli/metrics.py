"""`moeparity metrics`: what logged log-probabilities say about a sampler and a trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moeparity.cli.options import Html, Json
from moeparity.errors import MoeparityError, display_path

if TYPE_CHECKING:
    from moeparity.cli.outputs import Outputs
    from moeparity.logs.log_files import Opening
    from moeparity.logs.request import MetricsRequest
    from moeparity.metrics.verdict import Gate as Bound

Join = Literal["id", "order"]
Files = Annotated[
    list[Path], typer.Argument(help="Logs of log-probabilities; files that hold one side each are joined by id.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Also metrics as a framework defines them: nemo-rl, verl, slime, miles, trl, "
        "openrlhf, areal, pipelinerl, tinker, prime-rl or all; may be repeated.",
    ),
]
By = Annotated[
    list[str] | None,
    typer.Option(
        help="Also the tokens in groups: position, probability, group, class, step, flipped, version_lag, pads; with "
        "--tokenizer retokenised; with --schedule phase, rows, drafted, cache, preempted, weights; may be repeated."
    ),
]
ServedSchedule = Annotated[
    Path | None,
    typer.Option("--schedule", help="The sampler's steps, as a server writes them; its sequences by number are ids."),
]
Gate = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="METRIC<NUMBER", help="A bound on the mean of a metric, as in 'k3<1e-3'; one."),
]
Trainer = Annotated[
    list[Path] | None,
    typer.Option(help="A file of the trainer's side, where FILES are the sampler's alone; may be repeated."),
]
JoinBy = Annotated[Join, typer.Option(help="How the sides' sequences are matched: by id, or by order.")]
Partial = Annotated[
    bool, typer.Option("--partial", help="Leave out sequences that only one side has, instead of refusing them.")
]
Format = Annotated[
    str | None, typer.Option("--format", help="The format of the files, if their contents leave it open.")
]
TextOfIds = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", help="A tokenizer.json, or a folder with one: aligns ids by text where the sides' ids differ."
    ),
]
TrainerFormat = Annotated[str | None, typer.Option(help="The format of the trainer's files.")]
Plot = Annotated[
    Path | None, typer.Option(help="Write k3 and mean |delta| over steps to this .png or .svg (needs matplotlib).")
]
AsRepeats = Annotated[
    bool,
    typer.Option("--repeats", help="Each file is one run of the same batch: what differs between them, and where."),
]


def metrics(
    files: Files,
    sets: Sets = None,
    by: By = None,
    gates: Gate = None,
    trainer: Trainer = None,
    join: JoinBy = "id",
    partial: Partial = False,
    format: Format = None,
    trainer_format: TrainerFormat = None,
    tokenizer: TextOfIds = None,
    plot: Plot = None,
    schedule: ServedSchedule = None,
    repeats: AsRepeats = False,
    json: Json = None,
    html: Html = None,
) -> None:
    """KL and its kin from logged log-probabilities, without weights. The log has a sampler's and a trainer's.

    Exit code 0; with --gate 0 passed, 1 not, 3 inconclusive (a pass takes 25 sequences); 2 the log could not be read.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.logs.log_files import Opening
    from moeparity.logs.request import MetricsRequest

    with outputs({"--json": json, "--plot": plot, "--html": html}, unprinted=("--plot",)) as written:
        if repeats:
            _refuse_beside_repeats(
                sets=sets, by=by, gate=gates, trainer=trainer, partial=partial, schedule=schedule, tokenizer=tokenizer
            )
            _print_repeats(files, format, plot, written)
            return
        request = MetricsRequest(
            sets=tuple(sets or ()),
            by=tuple(by or ()),
            gate=_gate(gates or []),
            plots=html is not None,
        )
        opening = Opening(
            trainer=tuple(trainer or ()),
            format=format,
            trainer_format=trainer_format,
            join=join,
            partial=partial,
            tokenizer=tokenizer,
            schedule=schedule,
        )
        code = _print_log(files, request, opening, plot, written)
    raise typer.Exit(code)


def _gate(gates: list[str]) -> Bound | None:
    """The one gate that is given; None without one. Raises MoeparityError for several."""
    from moeparity.logs.request import read_gate

    if len(gates) > 1:
        raise MoeparityError(
            f"--gate is given {len(gates)} times; a log is held to one. A file `kind: log` bounds several metrics "
            "under `expect: {metrics: ...}` (docs/ci.md)."
        )
    return read_gate(gates[0]) if gates else None


def _print_log(
    files: list[Path], request: MetricsRequest, opening: Opening, plot: Path | None, written: Outputs
) -> int:
    """Write and print a log's report; returns its exit code."""
    from moeparity.logs.log_files import NotDrawnError, measure_files
    from moeparity.logs.show import document

    undrawn: NotDrawnError | None = None
    try:
        with written.progress() as progress:
            report = measure_files(files, request, opening, progress, plot)
    except NotDrawnError as error:
        report, undrawn = error.report, error
    written.report(report, document(report, _subject(files), request.sets))
    if undrawn is not None:
        raise undrawn
    return report.exit_code


def _subject(files: list[Path]) -> str:
    """The title of a page."""
    return " ".join(display_path(file) for file in files)


def _refuse_beside_repeats(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise MoeparityError(
                f"metrics: --repeats compares runs that hold both sides; --{name.replace('sets', 'set')} is for one "
                "log. Leave one of them out."
            )


def _print_repeats(files: list[Path], format: str | None, plot: Path | None, written: Outputs) -> None:
    from moeparity.logs.repeats import measure_repeats
    from moeparity.logs.show import document_of_runs

    with written.progress() as progress:
        runs = measure_repeats(files, format=format, progress=progress, plot=plot)
    written.report(runs, document_of_runs(runs, _subject(files)))
