"""Where compositions begin to vary, as pictures: the tokens with other bits behind each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.variance.report import Comparison, GroupVariance, VarianceReport
from moeparity.bisection.variance.text import title
from moeparity.output.html.page import Block, PageSection
from moeparity.output.html.series import Line, Series, picture
from moeparity.output.words import percent


def pictures(report: VarianceReport) -> PageSection | None:
    """A picture for each group of compositions; None for a model without layers."""
    blocks = list(_blocks(report))
    if not blocks:
        return None
    return PageSection(
        key="layers", short="By layer", title="Where does each composition begin to vary?", blocks=blocks
    )


def _blocks(report: VarianceReport) -> Iterator[Block]:
    groups = [(side, group) for side in report.sides for group in side.groups if group.comparisons]
    for number, (side, group) in enumerate(groups):
        if group.comparisons[0].layers:
            yield picture(title(side, group), _series(f"group{number}", group))


def _series(name: str, group: GroupVariance) -> Series:
    stages = [layer.name for layer in group.comparisons[0].layers]
    return Series(
        name=name,
        label="Tokens with other bits behind each layer, by composition",
        x=range(len(stages)),
        ticks=[stage.removeprefix("layers[").removesuffix("]") for stage in stages],
        x_label="behind layer",
        y_label=f"part of tokens unlike {group.against}",
        lines=[
            Line(label=comparison.composition, values=[layer.part for layer in comparison.layers])
            for comparison in group.comparisons
        ],
        reach=(0.0, 1.05),
        words=[[stage, *_words(group.comparisons, place)] for place, stage in enumerate(stages)],
    )


def _words(comparisons: Sequence[Comparison], place: int) -> Iterator[str]:
    for comparison in comparisons:
        layer = comparison.layers[place]
        extent = f"{percent(layer.part)} of tokens" if layer.tokens else "every token has equal bits behind it"
        first = f", first at {layer.first_node}" if layer.first_node else ""
        yield f"{comparison.composition}: {extent}{first}"
