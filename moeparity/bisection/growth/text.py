"""Growth over layers and routing flips for the terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.growth.steps import JUMP, steps
from moeparity.bisection.report import LayerGrowth, Report, RoutingFlips
from moeparity.output.tables import plain_table

MOST_LAYERS = 24
"""Rows of a table over layers."""
_TOLD = 4
"""Layers that a long table shows whatever else it leaves out: the greatest jumps, or the most flips."""
_BAR = 12
Row = TypeVar("Row")


def growth_table(report: Report) -> RenderableType:
    """The error after each layer, as a number, as a bar on a log scale, and as a multiple of the layer before."""
    scale = _Scale(layer.carried.relative_l2 for layer in report.growth)
    columns = ("after", "rel. L2", scale.label, "per layer", "equal bits", "mean ulp", "max ulp", "flips")
    table = plain_table(*columns, names="largest local error", less=(scale.label, "mean ulp", "equal bits"))
    flips = {f"layers[{f.layer}]": f"{f.set_flips / f.tokens:.2%}" for f in report.flips.layers} if report.flips else {}
    factors = {step.layer: step.factor for step in steps(report)}
    jumps = sorted((name for name in factors if factors[name] >= JUMP), key=lambda name: -factors[name])[:_TOLD]
    at = {layer.name: i for i, layer in enumerate(report.growth)}
    shown, note = thinned(report.growth, {i for name in jumps for i in (at[name] - 1, at[name])})
    for layer in shown:
        carried, factor = layer.carried, factors.get(layer.name)
        table.add_row(
            layer.name if layer.name.startswith("layers") else layer.node,
            f"{carried.relative_l2:.2e}",
            scale.bar(carried.relative_l2),
            "" if factor is None else Text(f"x{factor:.2f}", style="bold red" if factor >= JUMP else ""),
            f"{carried.equal_share:.1%}",
            f"{carried.mean_ulp:.2f}",
            str(carried.max_ulp),
            flips.get(layer.name, ""),
            _local(layer),
        )
    return Group(table, *note)


def flips_table(flips: RoutingFlips) -> RenderableType:
    """The flips of each MoE layer, and the share of tokens that flip anywhere."""
    table = plain_table("layer", "set differs", "ordered slots", "zero overlap")
    flipping = [i for i, layer in enumerate(flips.layers) if layer.set_flips]
    most = sorted(flipping, key=lambda i: -flips.layers[i].set_flips)[:_TOLD]
    shown, note = thinned(flips.layers, most)
    for layer in shown:
        table.add_row(
            str(layer.layer),
            f"{layer.set_flips} ({layer.set_flips / layer.tokens:.2%})",
            f"{layer.slot_flips} ({layer.slot_flips / layer.tokens:.2%})",
            str(layer.zero_overlap),
        )
    flipped = flips.tokens_any_layer
    total = Text(f"{flipped} of {flips.tokens} tokens ({flipped / flips.tokens:.2%}) flip in some layer")
    return Group(table, *note, total)


def _local(layer: LayerGrowth) -> str:
    if not layer.largest_local:
        return "no op of its own differs"
    return f"{layer.largest_local:.2e} {layer.largest_local_node.removeprefix(layer.name + '.')}"


class _Scale:
    """A log scale between the powers of ten around some errors; what is 0 or not finite has no bar."""

    def __init__(self, errors: Iterable[float]) -> None:
        logs = [math.log10(error) for error in errors if 0 < error < math.inf]
        self.low = math.floor(min(logs)) if logs else 0
        self.high = max(math.ceil(max(logs)), self.low + 1) if logs else 1
        self.label = f"1e{self.low} to 1e{self.high}" if logs else ""

    def bar(self, error: float) -> str:
        if not 0 < error < math.inf:
            return ""
        share = (math.log10(error) - self.low) / (self.high - self.low)
        return "#" * max(1, round(_BAR * share))


def thinned(rows: Sequence[Row], told: Collection[int]) -> tuple[list[Row], list[Text]]:
    """Some of many layers, the first, the last and the `told` among them, and a note that says so."""
    if len(rows) <= MOST_LAYERS:
        return list(rows), []
    even = MOST_LAYERS - len(told)
    step = (len(rows) - 1) / (even - 1)
    kept = sorted({round(i * step) for i in range(even)} | set(told))
    note = Text(f"{len(kept)} of {len(rows)} rows; all of them are in --json.", style="dim")
    return [rows[i] for i in kept], [note]
