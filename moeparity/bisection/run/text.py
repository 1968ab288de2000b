"""What was run, and what it cost, for the terminal."""

from __future__ import annotations

from rich.console import RenderableType

from moeparity.bisection.report import Report
from moeparity.bisection.run.report import Run
from moeparity.bisection.sections import Shown
from moeparity.output.tables import Words, plain_grid
from moeparity.output.words import quantity


def _run(report: Report) -> Shown:
    yield "Run", _head(report)


def _cost(report: Report) -> Shown:
    yield "Cost", Words(_work(report))


def _head(report: Report) -> RenderableType:
    run, table = report.run, plain_grid(2)
    table.add_row("recipe", run.recipe)
    table.add_row("checkpoint", checkpoint(run))
    if run.sampling is not None:
        table.add_row("sampled", f"{run.sampling}, by the {run.sampled_from} of this run")
    for name, side in (("reference", report.reference), ("candidate", report.candidate)):
        table.add_row(name, str(side))
    table.add_row("machine", machine(run))
    return table


def checkpoint(run: Run) -> str:
    """The checkpoint and the tokens of a run."""
    return (
        f"{run.checkpoint} ({run.model_type}), {run.sequences} x {run.tokens_per_sequence} tokens sampled from the "
        f"{run.sampled_from}, {run.scored_tokens} scored" + (f", {run.pads} pads" if run.pads else "")
    )


def machine(run: Run) -> str:
    """What a run ran on."""
    hardware = run.cpu if run.device == "cpu" else f"{run.device} (host {run.cpu})"
    return f"{hardware}, torch {run.torch}, {quantity(run.threads, 'thread')}"


def _work(report: Report) -> str:
    cost = report.cost
    return (
        f"{cost.evaluations} op evaluations for {report.run.variants} variants and the local errors "
        f"({cost.naive_evaluations} without sharing), {cost.weight_bytes_read / 1e6:.1f} MB of weights read, "
        f"{cost.seconds:.1f} s, {_memory(report)}"
    )


def _memory(report: Report) -> str:
    """The peak and its estimate, which is a bound of what moeparity's own kernels take, not of a user's function."""
    cost = report.cost
    peak = "unknown" if cost.memory_peak is None else f"{cost.memory_peak / 1e9:.2f} GB"
    words = f"{cost.memory_estimated / 1e9:.2f} GB estimated"
    if any(toggle.kind == "implementation" for toggle in report.toggles):
        words += " without what the functions of `impl` take themselves"
    if cost.memory_peak is not None and cost.memory_peak > cost.memory_estimated:
        words += ", too little"
    return f"peak memory {peak} ({words})"


SHOWN = {"run": _run, "cost": _cost}
