"""What was run, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.run.data import Run
from moeparity.output.blocks import Cell, Group, group, lines, names
from moeparity.output.words import enumerated, quantity


def show(report: ReportData) -> Iterator[Group]:
    """The recipe, the checkpoint and both sides."""
    run = report.run
    rows: list[tuple[Cell, ...]] = [("recipe", run.recipe), ("checkpoint", checkpoint(run))]
    if run.sampling is not None:
        rows.append(("sampled", f"{run.sampling}, by the {run.sampled_from} of this run"))
    sides = (("reference", report.reference.in_full), ("candidate", report.candidate.in_full))
    yield group("Run", names([*rows, *sides, ("machine", machine(run))]))


def show_cost(report: ReportData) -> Iterator[Group]:
    """Work, time and memory."""
    cost = report.cost
    yield group(
        "Cost",
        lines(
            f"{cost.evaluations} op evaluations for {report.run.variants} variants and the local errors "
            f"({cost.naive_evaluations} without sharing), {cost.weight_bytes_read / 1e6:.1f} MB of weights read, "
            f"{cost.seconds:.1f} s, {_memory(report)}"
        ),
    )


def checkpoint(run: Run) -> str:
    """The checkpoint and the tokens of a run."""
    scored = (
        f"{run.scored_tokens} pairs"
        if run.pairs
        else f"sampled from the {run.sampled_from}, {run.scored_tokens} scored"
    )
    return (
        f"{run.checkpoint} ({run.model_type}{_packed(run)}){_beside(run)}, "
        f"{run.sequences} x {run.tokens_per_sequence} tokens{',' if run.pairs else ''} {scored}"
        + (f", {run.pads} pads" if run.pads else "")
    )


def _beside(run: Run) -> str:
    return "" if run.adapter is None else f" with the adapter {run.adapter}"


def _packed(run: Run) -> str:
    """In which formats weights lie in the checkpoint, and what becomes of them."""
    if not run.formats:
        return ""
    sides = " and ".join(f"the {side}'s" for side in run.of_codes)
    return f"; {enumerated(run.formats)} weights multiplied out, " + (
        f"but where codes are in {sides} GEMMs" if sides else "none of its codes in a GEMM"
    )


def machine(run: Run) -> str:
    """What a run ran on."""
    hardware = run.cpu if run.device == "cpu" else f"{run.device} (host {run.cpu})"
    return f"{hardware}, torch {run.torch}, {quantity(run.threads, 'thread')}"


def _memory(report: ReportData) -> str:
    """The peak and its estimate, which bounds the memory of moeparity's kernels but not that of a user's function."""
    cost = report.cost
    peak = "unknown" if cost.memory_peak is None else f"{cost.memory_peak / 1e9:.2f} GB"
    words = f"{cost.memory_estimated / 1e9:.2f} GB estimated"
    if cost.memory_peak is not None and cost.memory_peak > cost.memory_estimated:
        words += ", too low"
    if any(toggle.kind == "implementation" for toggle in report.toggles):
        words += "; functions of `impl` are not estimated"
    return f"peak memory {peak} ({words})"
