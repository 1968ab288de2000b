"""Routing flips for the terminal: a few lines in every report, and the whole picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from moeparity.bisection.flips.report import (
    CostOf,
    FlipDetail,
    LayerDetail,
    LayerFlips,
    Margins,
    Mean,
    Origin,
    RoutingFlips,
)
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import PEAKS, plain_table, thinned
from moeparity.output.words import between, percent

_ROWS = 10
"""Rows of a list that goes on in --json."""
_POWER = 1024
"""From here on a number of ulps is printed as a power of two."""


def _section(report: Report) -> Shown:
    if report.flips is not None and report.roots:
        yield "Routing flips", Group(flips_table(report.flips), *short(report.flips))


def flips_table(flips: RoutingFlips) -> RenderableType:
    """The flips of each MoE layer, and the share of tokens that flip anywhere."""
    table = plain_table("layer", "set differs", "ordered slots", "zero overlap")
    rows, note = thinned(flips.layers, _peaks(flips))
    for layer in rows:
        table.add_row(*_layer(layer))
    flip_count = flips.tokens_any_layer
    total = Text(f"{flip_count} of {flips.tokens} tokens ({percent(flip_count / flips.tokens)}) flip in some layer")
    return Group(table, *note, total)


def short(flips: RoutingFlips) -> list[RenderableType]:
    """What a report says beside the table of layers: origin, margins and cost, a line each."""
    detail = flips.detail
    if detail is None or not detail.rates.set_differs:
        return []
    lines: list[RenderableType] = []
    if detail.origin is not None:
        lines.append(Text(_origin_line(detail.origin)))
    if detail.margins is not None:
        lines.append(Text(_margin_line(detail.margins)))
    if detail.cost is not None and detail.cost.flipped is not None:
        flip_cost, other_cost = detail.cost.flipped, detail.cost.unflipped
        suffix = "" if other_cost is None else f", elsewhere {other_cost.kl.estimate:.3g}"
        lines.append(Text(f"KL {flip_cost.kl.estimate:.3g} nats per token where the position flips{suffix}"))
    return lines


def print_flips(flips: RoutingFlips, console: Console) -> None:
    """Print the whole picture, a section each."""
    for title, body in _sections(flips):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(Padding(body, (0, 0, 0, 2), expand=False))


def _sections(flips: RoutingFlips) -> Iterator[tuple[str, RenderableType]]:
    detail = flips.detail
    assert detail is not None, "flips are printed where they were looked at"
    yield "Flips by every definition", _rates(flips, detail)
    if not detail.rates.ordered_slots:
        return
    yield "By layer", _layers(flips, detail)
    if not detail.rates.set_differs:
        return
    yield "Layers a token flips in", _spread(detail.layers_per_token)
    if detail.origin is not None:
        yield "Root or inherited", _origin(detail.origin)
    if detail.left_at:
        yield "Where the tokens that flip left the reference's bits", _departures(detail)
    if detail.choices:
        yield "Choices", _choices(detail)
    if detail.margins is not None:
        yield "Margin at the cut", _margins(detail.margins)
    yield "Expert pairs", _pairs(detail)
    if detail.cost is not None:
        yield "Cost", _cost(detail)


def _rates(flips: RoutingFlips, detail: FlipDetail) -> RenderableType:
    rates, routes = detail.rates, sum(layer.tokens for layer in flips.layers)
    table = plain_table("definition", "value", names="of")
    for name, value, basis in (
        ("set differs", percent(rates.set_differs), f"{routes} token-layers: another set of experts (a flip)"),
        ("any layer", percent(rates.any_layer), f"{flips.tokens} tokens: a flip in some layer"),
        ("layers per token", f"{rates.layers_per_token:.3f}", f"of {len(flips.layers)} layers, mean"),
        ("slot overlap", percent(rates.slot_overlap), "a token's experts that both sides picked, mean"),
        ("zero overlap", percent(rates.zero_overlap), "token-layers: no expert in common"),
        ("ordered slots", percent(rates.ordered_slots), "token-layers: another expert in some slot"),
    ):
        table.add_row(name, value, basis)
    if rates.weight_drift is not None:
        largest = f"|weight difference| of an expert both picked, mean; at most {rates.weight_drift_max:.3g}"
        table.add_row("weight drift", f"{rates.weight_drift:.3g}", largest)
    return table


def _layers(flips: RoutingFlips, detail: FlipDetail) -> RenderableType:
    with_origin = detail.origin is not None
    extra = ("root", "inherited", "tied", "median margin") if with_origin else ()
    table = plain_table("layer", "set differs", "ordered slots", "zero overlap", *extra, optional=("zero overlap",))
    rows = list(zip(flips.layers, detail.layers, strict=True))
    selection, note = thinned(rows, _peaks(flips))
    for counts, layer_detail in selection:
        table.add_row(*_layer(counts), *(_layer_origin(layer_detail) if with_origin else ()))
    return Group(table, *note)


def _peaks(flips: RoutingFlips) -> list[int]:
    """The places of the layers with the most flips."""
    places = [place for place, layer in enumerate(flips.layers) if layer.set_flips]
    return sorted(places, key=lambda place: -flips.layers[place].set_flips)[:PEAKS]


def _layer(counts: LayerFlips) -> tuple[str, ...]:
    return (
        str(counts.layer),
        _counted(counts.set_flips, counts.tokens),
        _counted(counts.slot_flips, counts.tokens),
        str(counts.zero_overlap),
    )


def _layer_origin(detail: LayerDetail) -> tuple[str, ...]:
    origin, margins = detail.origin, detail.margins
    assert origin is not None
    return (
        str(origin.roots),
        str(origin.total - origin.roots - origin.unknown),
        "" if margins is None else str(margins.tie_flips),
        "" if margins is None or margins.median_margin is None else f"{_range(margins.median_margin)} ulp",
    )


def _spread(counts: Sequence[int]) -> RenderableType:
    total = sum(counts)
    table = plain_table("layers", "tokens", "part")
    if len(counts) > _ROWS:
        # The first few one by one, then ranges of equal width.
        width = math.ceil((len(counts) - 4) / (_ROWS - 4))
        ranges = [(i, i + 1) for i in range(4)] + [(i, i + width) for i in range(4, len(counts), width)]
    else:
        ranges = [(i, i + 1) for i in range(len(counts))]
    for low, high in ranges:
        tokens = sum(counts[low:high])
        name = str(low) if high == low + 1 else f"{low} to {min(high, len(counts)) - 1}"
        table.add_row(name, str(tokens), percent(tokens / total))
    return table


def _origin(origin: Origin) -> RenderableType:
    table = plain_table("flips", "part", names="from", names_first=True)
    rows = (
        ("root: the gate's input has the reference's bits, its logits have not", origin.root_gate),
        ("root: the logits have them too, the router alone decides otherwise", origin.root_router),
        ("inherited, the token flipped in an earlier layer", origin.after_own),
        ("inherited, an earlier token of the sequence flipped in an earlier layer", origin.after_others),
        ("inherited, no flip came before: rounding alone", origin.before_any),
        ("unknown: the gate lies inside a user's function", origin.unknown),
    )
    for name, count in rows:
        if count or not name.startswith("unknown"):
            table.add_row(name, str(count), percent(count / origin.total))
    return table


def _departures(detail: FlipDetail) -> RenderableType:
    table = plain_table("tokens", names="node", names_first=True)
    for place in detail.left_at[:_ROWS]:
        through = ", reads earlier tokens that had left before" if place.through_others else ""
        table.add_row(f"{place.node} ({place.op}){through}", str(place.tokens))
    return Group(table, *_more(len(detail.left_at)))


def _choices(detail: FlipDetail) -> RenderableType:
    assert detail.origin is not None
    total = detail.origin.total
    table = plain_table("alone: flips too", "restored: gone", names="choice", names_first=True)
    for choice in sorted(detail.choices, key=lambda choice: -(choice.alone or 0))[:_ROWS]:
        table.add_row(choice.name, *(_of(count, total) for count in (choice.alone, choice.gone)))
    note = Text("Of the candidate's flips; those of several choices overlap, and need not add up.", style="dim")
    return Group(table, *_more(len(detail.choices)), note)


def _of(count: int | None, total: int) -> str:
    return "cannot run" if count is None else _counted(count, total)


def _margins(margins: Margins) -> RenderableType:
    table = plain_table(f"margin (ulp of {margins.dtype})", "token-layers", "flips", "part")
    for low, high, routes, flips in _coarse(margins):
        table.add_row(_range((low, high)), str(routes), str(flips), percent(flips / routes))
    lines = [_margin_line(margins)]
    lines.append(f"{margins.within_reach} token-layers have a margin of at most twice their perturbation")
    noun = "flips" if margins.tie_flips != 1 else "flip"
    lines.append(f"exact ties at the cut: {margins.ties} token-layers, {margins.tie_flips} {noun} (in no row above)")
    if margins.group_flips:
        verb = "flips keep" if margins.group_flips != 1 else "flip keeps"
        lines.append(f"{margins.group_flips} {verb} other groups of experts: there is no one cut (in no row above)")
    # Where every token is tied there is no row.
    return Group(*([table] if margins.bins else []), *map(Text, lines))


def _coarse(margins: Margins) -> Iterator[tuple[float, float, int, int]]:
    """Bins with neighbours joined until they are few."""
    bins = margins.bins
    size = max(1, math.ceil(len(bins) / _ROWS))
    for i in range(0, len(bins), size):
        part = bins[i : i + size]
        yield part[0].low, part[-1].high, sum(b.token_layers for b in part), sum(b.flips for b in part)


def _pairs(detail: FlipDetail) -> RenderableType:
    table = plain_table("layer", "reference", "candidate", "flips")
    for pair in detail.pairs[:_ROWS]:
        table.add_row(str(pair.layer), str(pair.reference), str(pair.candidate), str(pair.flips))
    return Group(table, *_more(detail.distinct_pairs))


def _cost(detail: FlipDetail) -> RenderableType:
    cost = detail.cost
    assert cost is not None
    table = plain_table("scored", "KL", "|delta log p|", names="position before the token", names_first=True)
    for name, part in (("flips in some layer", cost.flipped), ("flips nowhere", cost.unflipped)):
        if part is not None:
            table.add_row(name, *_cost_row(part))
    note = "Nats per token with 95% intervals over sequences."
    if cost.kl_share is not None:
        note = f"{note} Positions that flip carry {percent(cost.kl_share)} of the KL."
    return Group(table, Text(note, style="dim"))


def _cost_row(part: CostOf) -> tuple[str, ...]:
    return (str(part.tokens), *(_mean(mean) for mean in (part.kl, part.abs_delta)))


def _mean(mean: Mean) -> str:
    return f"{mean.estimate:.3g} {between(mean.low, mean.high, '.2g')}"


def _origin_line(origin: Origin) -> str:
    inherited_count = origin.total - origin.roots - origin.unknown
    parts = [f"{origin.roots} of {origin.total} flips are roots", f"{inherited_count} inherited"]
    if inherited_count:
        parts[-1] += f" ({origin.after_own} after one of the same token)"
    return ", ".join([*parts, *([f"{origin.unknown} unknown"] if origin.unknown else [])])


def _margin_line(margins: Margins) -> str:
    def words(edges: tuple[float, float] | None) -> str:
        return "none" if edges is None else f"{_range(edges)} ulp"

    return (
        f"median margin {words(margins.median_margin)}, of flips {words(margins.median_margin_of_flips)}; "
        f"median perturbation {words(margins.median_perturbation)}"
    )


def _range(edges: tuple[float, float]) -> str:
    low, high = edges
    if high == math.inf:
        return f"{_ulps(low)} and more"
    return f"below {_ulps(high)}" if low == 0 else f"{_ulps(low)}..{_ulps(high)}"


def _ulps(value: float) -> str:
    # The edges of bins are powers of two.
    return f"{value:.0f}" if value < _POWER else f"2^{round(math.log2(value))}"


def _counted(count: int, total: int) -> str:
    return f"{count} ({percent(count / total)})" if total else str(count)


def _more(total: int) -> list[Text]:
    return [Text(f"{_ROWS} of {total}; more in --json.", style="dim")] if total > _ROWS else []


SHOWN = {"flips": _section}
