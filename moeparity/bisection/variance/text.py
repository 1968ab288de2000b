"""What compositions changed, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from moeparity.bisection.run.text import checkpoint, machine
from moeparity.bisection.variance.report import Comparison, GroupVariance, SideVariance, VarianceReport
from moeparity.bisection.variance.words import headline, where
from moeparity.output.status import state_of, status, status_line
from moeparity.output.tables import Words, bullets, plain_grid, plain_table
from moeparity.output.words import percent

_KINDS = {
    "forward": "Forward of whole sequences",
    "prefill": "Prefill of whole sequences",
    "decode": "Decode",
    "packed": "Packed",
}

_NOTE = (
    "ratio: exp(current - previous) of the scored tokens, in fp64; previous is the composition that is held against.\n"
    "k3 and |delta|, the distance of both log-probabilities, in nats per token. rows: sequences x tokens of the op."
)


def print_variance(report: VarianceReport, out: Console) -> None:
    """Print where each composition first varies, how far it goes, and what that says."""
    reason = "; ".join(report.reasons) if report.exit_code == 3 else ""
    opening = status_line(
        state_of(report.exit_code), status(headline(report.sides), "gate equal bits", report.exit_code, reason)
    )
    out.print(opening)
    out.print(_head(report))
    for side in report.sides:
        for group in side.groups:
            out.print(Text(f"\n{title(side, group)}", style="bold"))
            for part in _tables(group):
                out.print(part)
    if any(side.varies for side in report.sides):
        out.print(Text(f"\n{_NOTE}", style="dim"))
    out.print(Text("\nIn words", style="bold"))
    out.print(bullets(report.reading))
    out.print()
    out.print(opening)


def _head(report: VarianceReport) -> RenderableType:
    table = plain_grid(2)
    table.add_row("recipe", report.run.recipe)
    table.add_row("checkpoint", checkpoint(report.run))
    if report.run.sampling is not None:
        table.add_row("sampled", f"{report.run.sampling}, by the {report.run.sampled_from} of this recipe")
    for side in report.sides:
        table.add_row(" and ".join(side.sides), f"{side.variant.profile}, {side.variant.dtype}")
    table.add_row("machine", machine(report.run))
    if report.synthetic is not None:
        words = f"synthetic({report.synthetic}), random numbers: what varies holds, how far it goes says nothing"
        table.add_row("weights", words)
    return table


def title(side: SideVariance, group: GroupVariance) -> str:
    """Which compositions these are, whose, and what they are held against."""
    return f"{_KINDS[group.kind]}, {' and '.join(side.sides)}: against {group.against}"


def _tables(group: GroupVariance) -> Iterator[RenderableType]:
    """Where every composition first varies, and how far that goes."""
    yield bullets(map(_first_line, group.comparisons))
    if any(comparison.first_op is not None for comparison in group.comparisons):
        table = plain_table(
            "ratio != 1", "lowest", "highest", "mean", "k3", "max |delta|", names="composition", names_first=True
        )
        for varied in group.comparisons:
            table.add_row(varied.composition, *_figures(varied))
        yield table
    if group.left_out:
        yield Words(f"left out: {'; '.join(group.left_out)}", style="dim")


def _first_line(comparison: Comparison) -> str:
    first = comparison.first_op
    if first is None:
        return f"{comparison.composition}: equal bits at every token of every op"
    rows = f"rows {first.against} there and {first.rows} here"
    return f"{comparison.composition}: {first.node} ({first.op}), {rows}; {where(first)}"


def _figures(comparison: Comparison) -> tuple[str, ...]:
    ratio, distance = comparison.ratio, comparison.distance
    share = percent(ratio.off / ratio.scored) if ratio.scored else ""
    return (
        share,
        *(f"{value:.9g}" for value in (ratio.low, ratio.high, ratio.mean)),
        f"{distance.k3:.2e}",
        f"{distance.max_abs_delta:.2e}",
    )
