"""`moeparity doctor`: the evidence of one run in, the cause out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from moeparity.cli.options import Device, Html, Json
from moeparity.errors import display_path

if TYPE_CHECKING:
    from moeparity.doctor.case import DoctorRequest

Evidence = Annotated[
    list[Path],
    typer.Argument(
        help="What a run left: logs of log-probabilities, checkpoints, LoRA adapters, launch files or resolved "
        "arguments, a server's steps, traces, fingerprints of weights, ranks' journals; or a folder that holds such."
    ),
]
Checkpoint = Annotated[
    Path | None, typer.Option(help="The weights that both sides were to have, if the evidence holds several.")
]
Adapter = Annotated[
    Path | None,
    typer.Option(help="The LoRA adapter that both sides were to have beside them, if the evidence holds several."),
]
Previous = Annotated[
    Path | None,
    typer.Option(help="The weights, or the adapter, before the last update: stale parts are looked for among them."),
]
Sampler = Annotated[
    str | None,
    typer.Option(metavar="PROFILE", help="The engine that sampled, where no launch file says it; vllm by default."),
]
Trainer = Annotated[
    str | None,
    typer.Option(metavar="PROFILE", help="The engine that scored, where no launch file says it; hf-eager by default."),
]
TrainerLog = Annotated[
    list[Path] | None,
    typer.Option(help="A log of the trainer's side alone, joined to the sampler's by id; may be repeated."),
]
Sequences = Annotated[int, typer.Option(min=2, help="How many sequences of the log are simulated.")]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, help="Examine so long, then tell the best so far. Ctrl-C does the same at once. Exit code 3."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say how long it would take, by what one simulation takes; nothing else.")
]
Every = Annotated[bool, typer.Option("--all", help="Simulate even if a file by itself names a cause.")]


def doctor(
    evidence: Evidence,
    checkpoint: Checkpoint = None,
    adapter: Adapter = None,
    previous: Previous = None,
    sampler: Sampler = None,
    trainer: Trainer = None,
    trainer_log: TrainerLog = None,
    sequences: Sequences = 64,
    seconds: Seconds = None,
    every: Every = False,
    dry_run: DryRun = False,
    device: Device = "auto",
    json: Json = None,
    html: Html = None,
) -> None:
    """What is wrong with a run, from what it left behind.

    Exit code 0 noise, or what the profiles legally differ in; 1 a cause, or more than noise; 2 the evidence could not
    be used; 3 undecided.
    """
    from moeparity.cli.outputs import outputs
    from moeparity.cli.signals import stopping
    from moeparity.doctor.case import DoctorRequest
    from moeparity.doctor.examine import examine
    from moeparity.doctor.show import document
    from moeparity.progress import Stop

    request = DoctorRequest(
        evidence=tuple(evidence),
        checkpoint=checkpoint,
        adapter=adapter,
        previous=previous,
        sampler=sampler,
        trainer=trainer,
        trainer_logs=tuple(trainer_log or ()),
        sequences=sequences,
        every=every,
        device=device,
    )
    wanted = {"--json": json, "--html": html}
    if dry_run:
        _show_cost(request, wanted)
    stop = Stop() if seconds is None else Stop(seconds=seconds)
    with outputs(wanted) as written:
        with written.progress() as progress, stopping(stop):
            examination = examine(request, progress, stop)
        written.report(examination, document(examination, " ".join(map(display_path, evidence))))
    raise typer.Exit(examination.exit_code)


def _show_cost(request: DoctorRequest, wanted: Mapping[str, Path | None]) -> NoReturn:
    """Print how long an examination would take on this machine, and exit."""
    from moeparity.cli.outputs import outputs, refuse_reports
    from moeparity.cli.render import show
    from moeparity.doctor.cost import expected

    refuse_reports("doctor", wanted)
    with outputs({}) as written, written.progress() as progress:
        estimate = expected(request, progress)
    show(estimate.blocks())
    raise typer.Exit
