"""A Report for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moeparity.bisection.envelope.text import envelope_tables
from moeparity.bisection.flips.text import short
from moeparity.bisection.floor.text import floor_table, oracle_table
from moeparity.bisection.growth.text import flips_table, growth_table
from moeparity.bisection.nearest.report import nearest_lines
from moeparity.bisection.replay.text import replay_tables
from moeparity.bisection.report import Choice, Report, Root, Run, ToggleResult, TrialResult
from moeparity.bisection.shares.text import attribution_sections
from moeparity.bisection.tokens.text import classes_table, recorded_table
from moeparity.output.tables import COLOUR, bullets, plain_grid
from moeparity.output.tables import plain_table as _table

_MORE_ROOTS = 4


def print_report(report: Report, console: Console) -> None:
    """Print a report, verdict first."""
    for title, body in _sections(report):
        if title:
            console.print(Text(f"\n{title}", style="bold"))
        console.print(Padding(body, (0, 0, 0, 2 if title else 0), expand=False))


def _sections(report: Report) -> Iterator[tuple[str, RenderableType]]:
    yield "", _head(report)
    if report.warnings:
        yield "", Group(*(Text(f"warning: {sentence}", style="yellow") for sentence in report.warnings))
    yield "", _verdict(report)
    yield "Where it starts", _roots(report)
    if report.roots:
        yield "Growth over layers", growth_table(report)
    if report.flips is not None and report.roots:
        yield "Routing flips", Group(flips_table(report.flips), *short(report.flips))
    yield from _beside(report)
    if report.toggles:
        yield "Toggles", _toggles(report)
    if report.nearest:
        yield "Nearest choices", Group(*(Text(line) for one in report.nearest for line in nearest_lines(one)))
    if report.attribution is not None:
        yield from attribution_sections(report.attribution)
    if report.swaps:
        yield "Swapped blocks", _swaps(report)
    if report.reading:
        yield "In words", bullets(report.reading)
    if report.recorded is not None:
        yield "Against the recorded data", recorded_table(report.recorded)
    if len(report.classes) > 1:
        yield "By class of token", classes_table(report.classes)
    yield "Cost", Text(_cost(report))


def _beside(report: Report) -> Iterator[tuple[str, RenderableType]]:
    """What further runs of the sides tell."""
    if report.replay is not None:
        yield "Replay ladder", replay_tables(report.replay)
    if report.envelope is not None:
        yield "Legal orders", envelope_tables(report.envelope)
    if report.arrival is not None:
        yield "Order of arrival", bullets(report.arrival.reading)
    if report.floor is not None:
        yield "Floor", floor_table(report.floor, report.verdict.metric)
    if report.oracle is not None:
        yield "Against the oracle", oracle_table(report.oracle)


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
    where = run.cpu if run.device == "cpu" else f"{run.device} (host {run.cpu})"
    return f"{where}, torch {run.torch}, {run.threads} thread{'s' * (run.threads != 1)}"


def _verdict(report: Report) -> RenderableType:
    verdict, metrics = report.verdict, report.metrics
    value = verdict.value
    line = Text.assemble(
        "\n",
        (verdict.status.upper(), COLOUR[verdict.status]),
        f"  {verdict.metric} = {value.estimate:.3g} nats per {verdict.reduce}",
        f" [{value.low:.3g}, {value.high:.3g}] ({value.level:.0%}, {value.method} over sequences), ",
        f"gate {verdict.below:g}",
    )
    table = Table.grid(padding=(0, 2))
    table.add_row("", verdict.reason)
    table.add_row(
        "",
        f"k1 {metrics.k1:.3g}, k2 {metrics.k2:.3g}, k3 {metrics.k3:.3g}, "
        f"KL(candidate || reference) {metrics.kl:.3g}, KL(reference || candidate) {metrics.kl_reverse:.3g}",
    )
    table.add_row(
        "",
        f"|delta log p| mean {metrics.mean_abs_delta:.3g}, max {metrics.max_abs_delta:.3g}; "
        f"top-1 agreement {metrics.top1_agreement:.2%}",
    )
    if (whole := report.distribution) is not None:
        table.add_row(
            "",
            f"over the vocabulary: JSD {whole.jsd:.3g}, TV mean {whole.tv:.3g}, max {whole.max_tv:.3g}; "
            f"top-10 Jaccard {whole.top10_jaccard:.4g}; rank of the chosen token off by {whole.rank_change:.3g}",
        )
    if metrics.nonfinite_tokens:
        table.add_row("", Text(f"{metrics.nonfinite_tokens} tokens have NaN or infinite logits", style="bold red"))
    return Group(line, table)


def _roots(report: Report) -> RenderableType:
    if not report.roots:
        return Text("nowhere: every node has equal bits on both sides")
    first, *others = report.roots
    lines: list[RenderableType] = [Text.assemble((first.node, "bold"), f" ({first.op}), {_sequences(first, report)}")]
    lines += [_choice(choice) for choice in first.choices]
    if others:
        shown = ", ".join(root.node for root in others[:_MORE_ROOTS])
        rest = f" and {len(others) - _MORE_ROOTS} more" if len(others) > _MORE_ROOTS else ""
        lines.append(Text(f"further roots (equal inputs, unequal output): {shown}{rest}"))
    return Group(*lines)


def _sequences(root: Root, report: Report) -> str:
    if root.same_values:
        return f"equal inputs, equal values in another dtype in {root.sequences} of {report.run.sequences} sequences"
    return f"equal inputs, unequal output in {root.sequences} of {report.run.sequences} sequences"


def _choice(choice: Choice) -> RenderableType:
    table = plain_grid(6)
    name = Text(choice.attribute, style="bold")
    table.add_row("", name, "reference", choice.reference, choice.reference_origin, choice.reference_set_by)
    table.add_row("", "", "candidate", choice.candidate, choice.candidate_origin, choice.candidate_set_by)
    return table


def _toggles(report: Report) -> RenderableType:
    table = _effects_table("toggle")
    for toggle, depth in _nested(report.toggles):
        table.add_row(*_toggle_row(toggle, report.metrics.kl, depth))
    note = Text(
        "alone: the reference with this one choice of the candidate; "
        "restored: the candidate with this one choice of the reference.\n"
        "KL(trial || reference) over the vocabulary, nats per token, and as a share of the candidate's KL; shares do "
        "not add up.\nflips: token-layers with another expert set.",
        style="dim",
    )
    return Group(table, note)


def _nested(
    toggles: Sequence[ToggleResult], parent: str | None = None, depth: int = 0
) -> Iterator[tuple[ToggleResult, int]]:
    """Every toggle followed by the parts it was taken apart into."""
    for toggle in toggles:
        if toggle.parent == parent:
            yield toggle, depth
            yield from _nested(toggles, toggle.name, depth + 1)


def _swaps(report: Report) -> RenderableType:
    table = _effects_table("block")
    for swap in report.swaps:
        if swap.toggle is None:
            table.add_row(f"{swap.selector}\n  {_nodes(swap.nodes)}, nothing differs", "", "", "", "")
        else:
            what = f"{_nodes(swap.nodes)}, {_nodes(swap.toggle.nodes)} differ"
            table.add_row(f"{swap.selector}\n  {what}", *_toggle_row(swap.toggle, report.metrics.kl, 0)[1:])
    note = Text("restored: the candidate with the reference's numerics in the whole block.", style="dim")
    return Group(table, note)


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _effects_table(names: str) -> Table:
    return _table("class", "alone: KL", "flips", "restored: KL", names=names, names_first=True)


def _toggle_row(toggle: ToggleResult, total: float, depth: int) -> list[str]:
    idle = toggle.had_no_effect or (toggle.alone is not None and not toggle.alone.changed_nodes)

    def kl(trial: TrialResult | None) -> str:
        if trial is None:
            return "cannot run"
        if toggle.had_no_effect or (idle and trial is toggle.alone):
            return "no effect"
        return f"{trial.kl:.2e} {trial.kl / total:>4.0%}" if total > 0 else f"{trial.kl:.2e}"

    flips = (
        ""
        if toggle.alone is None or idle or toggle.alone.flipped_routes is None
        else (f"{toggle.alone.flipped_routes:.2%}")
    )
    indent = "  " * depth
    name = toggle.name.removeprefix(f"{toggle.parent} / ")
    change = f"{indent}{name}" + (f"\n  {toggle.reference} -> {toggle.candidate}" if not depth else "")
    exact = "all bits" if toggle.restores_all and not toggle.had_no_effect else kl(toggle.restored)
    return [change, toggle.kind, kl(toggle.alone), flips, "masked" if toggle.masked else exact]


def _cost(report: Report) -> str:
    run = report.run
    return (
        f"{run.evaluations} op evaluations for {run.variants} variants and the local errors "
        f"({run.naive_evaluations} without sharing), {run.weight_bytes_read / 1e6:.1f} MB of weights read, "
        f"{run.seconds:.1f} s, {_memory(run)}"
    )


def _memory(run: Run) -> str:
    peak = "unknown" if run.memory_peak is None else f"{run.memory_peak / 1e9:.2f} GB"
    return f"peak memory {peak} ({run.memory_estimated / 1e9:.2f} GB estimated at most)"
