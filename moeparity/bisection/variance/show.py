"""What compositions changed, as shown: in sentences, by composition, and by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.run.show import checkpoint, machine
from moeparity.bisection.schedule.show import CANNOT_MATTER
from moeparity.bisection.variance.report import Comparison, FirstOp, GroupVariance, SideVariance, VarianceReport
from moeparity.output.blocks import (
    Block,
    Cell,
    Document,
    Status,
    Styled,
    Table,
    bullets,
    columns,
    group,
    lines,
    names,
    notes,
    table,
)
from moeparity.output.figures import Line, Series
from moeparity.output.status import state_of, status
from moeparity.output.words import enumerated, percent, quantity

Varying = tuple[Comparison, FirstOp]
"""A comparison in which something varies, and the first op that does."""


def reading(sides: Sequence[SideVariance]) -> Iterator[str]:
    """What each side's compositions say, in sentences."""
    for side in sides:
        whose = enumerated([f"the {name}" for name in side.sides])
        yield from _varies(side, whose) if side.varies else _same(side, whose)
    calls = dict.fromkeys(op for side in sides if side.varies for op in side.seeing if ":" in op)
    if calls:
        verb = "is a user's function" if len(calls) == 1 else "are users' functions"
        yield (
            f"{enumerated(list(calls))} {verb}. Only `moeparity bisect` tests whether the same call gives the same "
            "bits twice."
        )
    if not all(group.is_one_model for side in sides for group in side.groups):
        yield (
            "Packs without a mask, or whose positions go on from one sequence to the next, do not keep sequences "
            "apart: each composition then computes another function, so its differences are not rounding."
        )
    alike = (group for side in sides for group in side.groups if group.is_one_model)
    if any(comparison.ratio.off for group in alike for comparison in group.comparisons):
        yield "What helps: the same composition before and in the training step, or a batch-invariant profile."


def _same(side: SideVariance, whose: str) -> Iterator[str]:
    if not side.seeing and all(group.is_one_model for group in side.groups):
        yield f"{CANNOT_MATTER} here: no op of {whose} depends on which tokens are computed together."
        return
    yield (
        f"In {whose} every op gives every token the same bits in all of these compositions, on this machine. "
        f"{_clause(side)}. Other sizes, tokens or processors may still give others."
    )


def _varies(side: SideVariance, whose: str) -> Iterator[str]:
    varying = _varying([side])
    firsts = list(dict.fromkeys(first_op.node for _, first_op in varying))
    yield (
        f"In {whose} {len(varying)} of {quantity(len(side.comparisons), 'composition')} "
        f"{'gives' if len(varying) == 1 else 'give'} some tokens other bits than the one they are compared with, "
        f"first at {enumerated(firsts)}. {_clause(side)}."
    )
    comparison, _ = worst(varying)
    yield _of_ratio(comparison)


def _of_ratio(comparison: Comparison) -> str:
    ratio = comparison.ratio
    if not ratio.off:
        return (
            "What varies is rounded away again: no scored token has another log-probability, every ratio is exactly 1."
        )
    return (
        f"{comparison.composition}: exp(current - previous) is not 1 at {ratio.off} of {ratio.scored} scored tokens "
        f"({percent(ratio.off / ratio.scored)}), although the policy is the same."
    )


def _clause(side: SideVariance) -> str:
    ops = list(side.seeing)
    if not ops:
        return "No op depends on which tokens are computed together"
    return f"{enumerated(ops)} {'depends' if len(ops) == 1 else 'depend'} on which tokens are computed together"


def headline(sides: Sequence[SideVariance]) -> str:
    """What varies first, and how many ratios are not 1, for the status line."""
    varying = _varying(sides)
    if not varying:
        count = sum(1 + len(group.comparisons) for side in sides for group in side.groups)
        return f"nothing varies in {count} compositions"
    comparison, first_op = worst(varying)
    ratio = comparison.ratio
    return (
        f"{first_op.node} varies first in {comparison.composition}, ratio != 1 at {ratio.off} of {ratio.scored} scored "
        "tokens"
    )


def worst(varying: Sequence[Varying]) -> Varying:
    """The comparison with the most ratios that are not 1; among equals the one with the largest distance."""
    return max(varying, key=lambda pair: (pair[0].ratio.off, pair[0].distance.mean_abs_delta))


def _varying(sides: Sequence[SideVariance]) -> list[Varying]:
    comparisons = (comparison for side in sides for comparison in side.comparisons)
    return [(comparison, comparison.first_op) for comparison in comparisons if comparison.first_op is not None]


def where(first_op: FirstOp) -> str:
    """`192 of 192 in 8 sequences, from token 0 of sequence 0 on`."""
    sequences = f"{first_op.sequences} sequence{'s' * (first_op.sequences != 1)}"
    return (
        f"{first_op.tokens} of {first_op.computed} in {sequences}, first token {first_op.token} of sequence "
        f"{first_op.sequence}"
    )


_KINDS = {
    "forward": "Forward of whole sequences",
    "prefill": "Prefill of whole sequences",
    "decode": "Decode",
    "packed": "Packed",
}


def document(report: VarianceReport) -> Document:
    """The report: where each composition first varies, how far, and what that says."""
    return Document(command="variance", subject=report.run.recipe, blocks=tuple(_blocks(report)))


def _blocks(report: VarianceReport) -> Iterator[Block]:
    reason = "; ".join(report.reasons) if report.exit_code == 3 else ""
    text = status(headline(report.sides), "gate equal bits", report.exit_code, reason)
    yield Status(state_of(report.exit_code), text)
    yield _head(report)
    groups = [(side, group) for side in report.sides for group in side.groups]
    for number, (side, of) in enumerate(groups):
        yield group(title(side, of), _picture(f"group{number}", of), *_of_group(of))
    if any(side.varies for side in report.sides):
        yield notes(
            "ratio: exp(current - previous) of the scored tokens, in fp64; previous is the composition that the "
            "others are compared with.",
            "mult prob error: token_mult_prob_error, the mean of exp(|delta|).",
            "k3 and |delta|, the distance of both log-probabilities, in nats per token. rows: sequences x tokens of "
            "the op.",
        )
    yield group("In words", bullets(report.reading))


def _head(report: VarianceReport) -> Table:
    rows: list[tuple[Cell, ...]] = [("recipe", report.run.recipe), ("checkpoint", checkpoint(report.run))]
    if report.run.sampling is not None:
        rows.append(("sampled", f"{report.run.sampling}, by the {report.run.sampled_from} of this recipe"))
    rows += [(" and ".join(side.sides), f"{side.variant.profile}, {side.variant.dtype}") for side in report.sides]
    rows.append(("machine", machine(report.run)))
    if report.synthetic is not None:
        words = f"synthetic({report.synthetic}), random numbers: what varies holds, how far it goes says nothing"
        rows.append(("weights", words))
    return names(rows)


def title(side: SideVariance, group: GroupVariance) -> str:
    """A title that says which compositions these are, of which side, and with which one they are compared."""
    return f"{_KINDS[group.kind]}, {' and '.join(side.sides)}: against {group.against}"


def _of_group(of: GroupVariance) -> Iterator[Block]:
    """Where every composition first varies, and how far it goes."""
    yield bullets(map(_first_line, of.comparisons))
    if any(comparison.first_op is not None for comparison in of.comparisons):
        titles = ("ratio != 1", "lowest", "highest", "mean", "mult prob error", "k3", "max |delta|")
        rows = [(varied.composition, *_figures(varied)) for varied in of.comparisons]
        yield table(columns(*titles, first="composition"), rows)
    if of.left_out:
        yield lines(Styled(f"left out: {'; '.join(of.left_out)}", "dim"))


def _first_line(comparison: Comparison) -> str:
    first = comparison.first_op
    if first is None:
        return f"{comparison.composition}: equal bits at every token of every op"
    rows = f"rows {first.rows} against {first.against}"
    return f"{comparison.composition}: {first.node} ({first.op}), {rows}; {where(first)}"


def _figures(comparison: Comparison) -> tuple[str, ...]:
    ratio, distance = comparison.ratio, comparison.distance
    share = percent(ratio.off / ratio.scored) if ratio.scored else ""
    return (
        share,
        *(f"{value:.9g}" for value in (ratio.low, ratio.high, ratio.mean)),
        f"{distance.mult_prob_error:.9g}",
        f"{distance.k3:.2e}",
        f"{distance.max_abs_delta:.2e}",
    )


def _picture(name: str, of: GroupVariance) -> Series | None:
    """The number of tokens with other bits after each layer, as a figure; None if there are none, or no layers."""
    if not any(layer.tokens for comparison in of.comparisons for layer in comparison.layers):
        return None
    stages = [layer.name for layer in of.comparisons[0].layers]
    return Series(
        title="Tokens with other bits after each layer",
        name=name,
        label="Tokens with other bits after each layer, by composition",
        x=range(len(stages)),
        ticks=[stage.removeprefix("layers[").removesuffix("]") for stage in stages],
        x_label="layer",
        y_label="fraction of tokens",
        lines=[
            Line(label=comparison.composition, values=[layer.part for layer in comparison.layers])
            for comparison in of.comparisons
        ],
        reach=(0.0, 1.05),
        words=[[stage, *_words(of.comparisons, place)] for place, stage in enumerate(stages)],
    )


def _words(comparisons: Sequence[Comparison], place: int) -> Iterator[str]:
    for comparison in comparisons:
        layer = comparison.layers[place]
        extent = f"{percent(layer.part)} of tokens" if layer.tokens else "every token has equal bits after it"
        first = f", first at {layer.first_node}" if layer.first_node else ""
        yield f"{comparison.composition}: {extent}{first}"
