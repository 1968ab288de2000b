"""The groups "Where it starts" and "Growth over layers" of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from moeparity.bisection.data import ReportData
from moeparity.bisection.divergence.data import Choice, KnownDifference, LayerGrowth, Root, TokenPlace
from moeparity.bisection.divergence.growth import JUMP, steps
from moeparity.output.blocks import (
    PEAKS,
    Bar,
    Block,
    Cell,
    Group,
    Phrase,
    Row,
    Styled,
    Table,
    columns,
    group,
    lines,
    names,
    surplus,
    table,
    thinned,
)
from moeparity.output.figures import Line, Series
from moeparity.output.words import enumerated, percent, quantity, two_digits


def padding_reading(report: ReportData) -> Iterator[str]:
    """For roots at which only padding differs: a sentence on whether any scored token differs."""
    names = [root.node for root in report.roots if root.pads_only]
    if not names:
        return
    unequal = report.metrics.unequal_tokens
    if not unequal:
        yield "Nothing but padding differs there: no scored token differs in any bit."
    elif len(names) == len(report.roots):
        yield f"Nothing but padding differs there, and yet {_differ(unequal)}: the padding reaches them."
    else:
        yield f"Nothing but padding differs at {enumerated(names)}; {_differ(unequal)} in all."


def _differ(count: int) -> str:
    return f"{quantity(count, 'scored token')} {'differs' if count == 1 else 'differ'}"


_MORE_ROOTS = 4
_SHOWN_ROOTS = 12
"""This many roots of a trace are shown with their sizes."""
_PLACES = 2


def starts(report: ReportData) -> Iterator[Group]:
    """The roots, with the choices of the first."""
    yield group("Where it starts", *_roots(report))


def growth(report: ReportData) -> Iterator[Group]:
    """The error after each layer, as a picture and as a table."""
    if report.roots:
        picture = _picture(report)
        yield group("Growth over layers", *([picture] if picture else []), growth_table(report))


def _roots(report: ReportData) -> Iterator[Block]:
    if not report.roots:
        yield lines(nowhere(report.subtracted))
        return
    root, *more_roots = report.roots
    place = "" if report.trace is None else first_token(root)
    opening: Phrase = (Styled(root.node, "bold"), f" ({root.op}), {_sequences(root, report)}{place}")
    yield lines(opening, *padding_reading(report))
    if root.choices:
        yield _choices(root.choices)
    if report.trace is not None and more_roots:
        yield _by_size(report.roots)
    elif more_roots:
        others = ", ".join(root.node for root in more_roots[:_MORE_ROOTS])
        surplus = f" and {len(more_roots) - _MORE_ROOTS} more" if len(more_roots) > _MORE_ROOTS else ""
        yield lines(f"further roots (equal inputs, unequal output): {others}{surplus}")


def nowhere(subtracted: Sequence[KnownDifference]) -> str:
    """That there is no root."""
    if subtracted:
        return f"nowhere beyond the good run, which differs as much at {quantity(len(subtracted), 'node')}"
    return "nowhere: every node has equal bits on both sides"


def _by_size(roots: Sequence[Root]) -> Table:
    """Roots of a trace, the largest local error first, with the tokens that show each."""
    rows: list[tuple[Cell, ...]] = [
        (root.node, two_digits(root.local), str(root.tokens), "; ".join(map(token_words, root.places[:_PLACES])))
        for root in roots[:_SHOWN_ROOTS]
    ]
    of = columns("local error", "tokens", first="root", last="first tokens")
    return table(of, rows, *surplus(len(roots) - _SHOWN_ROOTS))


def token_words(place: TokenPlace) -> str:
    """`request 7, position 31`, or `sequence 7, position 31` where a trace names no requests."""
    return f"{f'request {place.request}' if place.request else f'sequence {place.sequence}'}, position {place.position}"


def first_token(root: Root) -> str:
    """`, the first at sequence 3, position 17`; empty where no real token has other values."""
    return f", the first at {token_words(root.places[0])}" if root.places else ""


def _sequences(root: Root, report: ReportData) -> str:
    run = report.run
    output = "equal values in another dtype" if root.same_values else "unequal output"
    tokens = f"{root.tokens} of {run.sequences * run.tokens_per_sequence} tokens"
    amount = "all" if root.pads_only else str(root.pads)
    padding = f", {amount} of them padding" if root.pads else ""
    return f"equal inputs, {output} in {root.sequences} of {run.sequences} sequences ({tokens}{padding})"


def _choices(choices: Iterable[Choice]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for choice in choices:
        of_reference = (choice.reference, choice.reference_evidence, choice.reference_set_by, choice.reference_origin)
        of_candidate = (choice.candidate, choice.candidate_evidence, choice.candidate_set_by, choice.candidate_origin)
        rows.append(("", Styled(choice.attribute, "bold"), "reference", _stand(*of_reference)))
        rows.append(("", "", "candidate", _stand(*of_candidate)))
    return names(rows)


def _stand(value: str, evidence: str, set_by: str, origin: str) -> str:
    """One side's value, how sure it is and what set it, as one text, so that a narrow terminal can break it at
    blanks.
    """
    return ", ".join(filter(None, (f"{value} ({evidence})", set_by, origin)))


def growth_table(report: ReportData) -> Table:
    """The error after each layer, as a number, as a bar on a log scale, and as a multiple of the layer before."""
    scale = _Scale(layer.carried.relative_l2 for layer in report.growth)
    flips = {f"layers[{f.layer}]": percent(f.set_flips / f.tokens) for f in report.flips.layers} if report.flips else {}
    factors = _factors(report)
    jumps = sorted((name for name in factors if factors[name] >= JUMP), key=lambda name: -factors[name])[:PEAKS]
    at = {layer.name: i for i, layer in enumerate(report.growth)}
    shown, note = thinned(report.growth, {i for name in jumps for i in (at[name] - 1, at[name])})
    titles = ("after", "rel. L2", scale.label, "per layer", "equal bits", "mean ulp", "max ulp", "flips")
    optional = (scale.label, "mean ulp", "equal bits")
    of = columns(*titles, last="largest local error", words=("after", scale.label), optional=optional)
    return table(
        of, [_row(layer, factors.get(layer.name), scale, flips) for layer in shown], *note, *_not_measured(report)
    )


def _not_measured(report: ReportData) -> Iterator[Phrase]:
    """A note that names the nodes without a local error, each once for all layers."""
    nodes = [*dict.fromkeys(_within(layer, node) for layer in report.growth for node in layer.not_measured)]
    if nodes:
        yield Styled(
            f"No local error at {enumerated(nodes)}: the sides' values can't be held against each other.", "dim"
        )


def _row(layer: LayerGrowth, factor: float | None, scale: _Scale, flips: Mapping[str, str]) -> Row:
    error = layer.carried
    cells: tuple[Cell, ...] = (
        _name(layer),
        f"{error.relative_l2:.2e}" if error.is_finite else "not finite",
        scale.bar(error.relative_l2),
        "" if factor is None else Styled(f"x{factor:.2f}", "bold red" if factor >= JUMP else ""),
        f"{error.equal_share:.1%}",
        f"{error.mean_ulp:.2f}",
        str(error.max_ulp),
        flips.get(layer.name, ""),
        _local(layer),
    )
    return Row(cells)


def _factors(report: ReportData) -> dict[str, float]:
    """By layer, the error after it over that after the layer before, where that one is finite."""
    layers = [layer for layer in report.growth if layer.name.startswith("layers")]
    bounded = {layer.name for before, layer in pairwise(layers) if before.carried.is_finite}
    return {step.layer: step.factor for step in steps(report.growth, report.flips) if step.layer in bounded}


def _name(layer: LayerGrowth) -> str:
    return layer.name if layer.name.startswith("layers") else layer.node


def _local(layer: LayerGrowth) -> str:
    if not layer.largest_local:
        return "not measured" if layer.not_measured else "no op of its own differs"
    size = "not finite" if math.isinf(layer.largest_local) else f"{layer.largest_local:.2e}"
    return f"{size} {_within(layer, layer.largest_local_node)}"


def _within(layer: LayerGrowth, node: str) -> str:
    return node.removeprefix(f"{layer.name}.")


class _Scale:
    """A log scale between the powers of ten around the given errors. An error of 0, NaN or infinity has no bar."""

    def __init__(self, errors: Iterable[float]) -> None:
        logs = [math.log10(error) for error in errors if 0 < error < math.inf]
        self.low = math.floor(min(logs)) if logs else 0
        self.high = max(math.ceil(max(logs)), self.low + 1) if logs else 1
        self.label = f"1e{self.low} to 1e{self.high}" if logs else ""

    def bar(self, error: float) -> Cell:
        """One error as a bar."""
        if not 0 < error < math.inf:
            return ""
        return Bar((math.log10(error) - self.low) / (self.high - self.low))


def _picture(report: ReportData) -> Series | None:
    """The error after each layer as a figure; None if no layer has an error that can be drawn."""
    carried = [_drawn(layer.carried.relative_l2) for layer in report.growth]
    if not any(map(math.isfinite, carried)):
        return None
    factors = _factors(report)
    return Series(
        title="Error after each layer",
        name="growth",
        label="Relative L2 error by layer",
        x=range(len(report.growth)),
        ticks=[layer.name.removeprefix("layers[").removesuffix("]") for layer in report.growth],
        x_label="after layer",
        y_label="relative L2 error",
        lines=[
            Line(label="carried error", values=carried),
            Line(
                label="largest local error in the layer",
                values=[_drawn(layer.largest_local) for layer in report.growth],
            ),
        ],
        words=[list(_words(layer, factors.get(layer.name))) for layer in report.growth],
    )


def _words(layer: LayerGrowth, factor: float | None) -> Iterator[str]:
    yield _name(layer)
    yield f"carried {layer.carried.relative_l2:.2e}" if layer.carried.is_finite else "carried: not finite"
    if layer.largest_local:
        yield f"largest local {_local(layer)}"
    if factor is not None:
        yield f"x{factor:.2f} of the layer before"


def _drawn(value: float) -> float:
    """The value, or what stands for it on a log axis."""
    return value if value > 0 and math.isfinite(value) else math.nan
