"""Routing flips as shown: a few lines in every report, all of it in `moeparity flips`, and the flip map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.flips.data import (
    CostOf,
    FlipDetail,
    LayerDetail,
    LayerFlips,
    Margins,
    Mean,
    Origin,
    RoutingFlips,
)
from moeparity.output.blocks import PEAKS, Block, Group, Phrase, Styled, Table, columns, group, lines, table, thinned
from moeparity.output.figures import Plot, Tool
from moeparity.output.words import between, percent, quantity

_ROWS = 10
"""At most this many rows of a list are shown; --json has all."""
_POWER = 1024
"""A number of ulps from here on is printed as a power of two."""


_TITLES = ("layer", "set differs", "ordered slots", "zero overlap")
_KEYS = {
    "flip": "flips, inherited",
    "root": "flips, a root",
    "slots": "same experts in another order",
    "same": "same experts in the same order",
}
_TOOLS = (
    Tool(key="in", text="+", label="Zoom in"),
    Tool(key="out", text="-", label="Zoom out"),
    Tool(key="all", text="All", label="Show all tokens"),
)


def show(report: ReportData) -> Iterator[Group]:
    """The flips of each layer with the map, and the lines beside them."""
    flips = report.flips
    if flips is not None and report.roots:
        sentences = short(flips)
        yield group("Routing flips", flip_map(report), flips_table(flips), lines(*sentences) if sentences else None)


def flip_map(report: ReportData) -> Plot | None:
    """The map of every layer and token; None if nothing flips or no token was compared."""
    flips = report.flips
    if flips is None or report.per_token is None or not any(layer.slot_flips for layer in flips.layers):
        return None
    return Plot(
        title="Layers x tokens",
        name="flipmap",
        label="Routing flips by layer and token",
        keys=_KEYS,
        tools=_TOOLS,
        note="Tokens stand side by side, sequence after sequence; where several share a column it shows the strongest "
        "of them. + and - zoom, arrow keys move, with Shift to the next flip, Enter shows the sequence below.",
    )


def flips_table(flips: RoutingFlips) -> Table:
    """The flips of each MoE layer, and the fraction of tokens that flip in any layer."""
    shown, note = thinned(flips.layers, _peaks(flips))
    count = flips.tokens_any_layer
    total = f"{count} of {flips.tokens} tokens ({percent(count / flips.tokens)}) flip in some layer"
    return table(columns(*_TITLES), map(_layer, shown), *note, total)


def short(flips: RoutingFlips) -> list[Phrase]:
    """One line each about origin, margins and cost, for a report's short form."""
    detail = flips.detail
    if detail is None or not detail.rates.set_differs:
        return []
    sentences: list[Phrase] = []
    if detail.origin is not None:
        sentences.append(_origin_line(detail.origin))
    if detail.margins is not None:
        sentences.append(_margin_line(detail.margins))
    if detail.cost is not None and detail.cost.flipped is not None:
        flip_cost, other_cost = detail.cost.flipped, detail.cost.unflipped
        suffix = "" if other_cost is None else f", elsewhere {other_cost.kl.estimate:.3g}"
        sentences.append(f"KL {flip_cost.kl.estimate:.3g} nats per token where the position flips{suffix}")
    return sentences


def show_flips(flips: RoutingFlips) -> Iterator[Group]:
    """Everything about the flips, one group for each question."""
    detail = flips.detail
    assert detail is not None, "flips are shown where they were looked at"
    yield group("Flips by every definition", _rates(flips, detail))
    if not detail.rates.ordered_slots:
        return
    yield group("By layer", _layers(flips, detail))
    if not detail.rates.set_differs:
        return
    yield group("Layers a token flips in", _spread(detail.layers_per_token))
    if detail.origin is not None:
        yield group("Root or inherited", _origin(detail.origin))
    if detail.left_at:
        yield group("Where the tokens that flip left the reference's bits", _departures(detail))
    if detail.choices:
        yield group("Choices", _choices(detail))
    if detail.margins is not None:
        yield group("Margin at the cut", *_margins(detail.margins))
    yield group("Expert pairs", _pairs(detail))
    if detail.cost is not None:
        yield group("Cost", _cost(detail))


def _rates(flips: RoutingFlips, detail: FlipDetail) -> Table:
    rates, routes = detail.rates, sum(layer.tokens for layer in flips.layers)
    rows = [
        ("set differs", percent(rates.set_differs), f"{routes} token-layers: another set of experts (a flip)"),
        ("any layer", percent(rates.any_layer), f"{flips.tokens} tokens: a flip in some layer"),
        ("layers per token", f"{rates.layers_per_token:.3f}", f"of {quantity(len(flips.layers), 'layer')}, mean"),
        ("slot overlap", percent(rates.slot_overlap), "a token's experts that both sides picked, mean"),
        ("zero overlap", percent(rates.zero_overlap), "token-layers: no expert in common"),
        ("ordered slots", percent(rates.ordered_slots), "token-layers: another expert in some slot"),
    ]
    if rates.weight_drift is not None:
        largest = f"|weight difference| of an expert both picked, mean; at most {rates.weight_drift_max:.3g}"
        rows.append(("weight drift", f"{rates.weight_drift:.3g}", largest))
    return table(columns("definition", "value", last="of", words=("definition",)), rows)


def _layers(flips: RoutingFlips, detail: FlipDetail) -> Table:
    with_origin = detail.origin is not None
    extra = ("root", "inherited", "tied", "median margin") if with_origin else ()
    shown, note = thinned(list(zip(flips.layers, detail.layers, strict=True)), _peaks(flips))
    rows = [(*_layer(counts), *(_layer_origin(of_layer) if with_origin else ())) for counts, of_layer in shown]
    return table(columns(*_TITLES, *extra, optional=("zero overlap",)), rows, *note)


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


def _spread(counts: Sequence[int]) -> Table:
    total, rows = sum(counts), []
    if len(counts) > _ROWS:
        # The first few numbers of layers have a row each, the others ranges of equal width.
        width = math.ceil((len(counts) - 4) / (_ROWS - 4))
        ranges = [(i, i + 1) for i in range(4)] + [(i, i + width) for i in range(4, len(counts), width)]
    else:
        ranges = [(i, i + 1) for i in range(len(counts))]
    for low, high in ranges:
        tokens = sum(counts[low:high])
        name = str(low) if high == low + 1 else f"{low} to {min(high, len(counts)) - 1}"
        rows.append((name, str(tokens), percent(tokens / total)))
    return table(columns("layers", "tokens", "part"), rows)


def _origin(origin: Origin) -> Table:
    rows = (
        ("root: the gate's input has the reference's bits, its logits do not", origin.root_gate),
        ("root: the logits have the reference's bits too, the router picks other experts", origin.root_router),
        ("inherited, the token flipped in an earlier layer", origin.after_own),
        ("inherited, an earlier token of the sequence flipped in an earlier layer", origin.after_others),
        ("inherited, no flip came before: rounding alone", origin.before_any),
        ("unknown: the gate lies inside a user's function", origin.unknown),
    )
    shown = [(name, count) for name, count in rows if count or not name.startswith("unknown")]
    of = columns("flips", "part", first="from")
    return table(of, [(name, str(count), percent(count / origin.total)) for name, count in shown])


def _departures(detail: FlipDetail) -> Table:
    rows = []
    for place in detail.left_at[:_ROWS]:
        through = ", reads earlier tokens that had left before" if place.through_others else ""
        rows.append((f"{place.node} ({place.op}){through}", str(place.tokens)))
    return table(columns("tokens", first="node"), rows, *_more(len(detail.left_at)))


def _choices(detail: FlipDetail) -> Table:
    assert detail.origin is not None
    total = detail.origin.total
    shown = sorted(detail.choices, key=lambda choice: -(choice.alone or 0))[:_ROWS]
    rows = [(choice.name, *(_of(count, total) for count in (choice.alone, choice.gone))) for choice in shown]
    note = "Of the candidate's flips; those of several choices overlap, and need not add up."
    of = columns("alone: flips too", "restored: gone", first="choice")
    return table(of, rows, *_more(len(detail.choices)), Styled(note, "dim"))


def _of(count: int | None, total: int) -> str:
    return "cannot run" if count is None else _counted(count, total)


def _margins(margins: Margins) -> Iterator[Block]:
    # If every token is tied, there is no bin to show.
    if margins.bins:
        rows = [
            (_range((low, high)), str(routes), str(flips), percent(flips / routes))
            for low, high, routes, flips in _coarse(margins)
        ]
        yield table(columns(f"margin (ulp of {margins.dtype})", "token-layers", "flips", "part"), rows)
    sentences = [
        _margin_line(margins),
        f"{margins.within_reach} token-layers have a margin of at most twice their perturbation",
        f"exact ties at the cut: {margins.ties} token-layers, {quantity(margins.tie_flips, 'flip')} (in no row above)",
    ]
    if margins.group_flips:
        picks = "flips pick" if margins.group_flips != 1 else "flip picks"
        sentences.append(
            f"{margins.group_flips} {picks} other groups of experts, without a single cut (in no row above)"
        )
    yield lines(*sentences)


def _coarse(margins: Margins) -> Iterator[tuple[float, float, int, int]]:
    """The bins, neighbours joined until they are few."""
    bins = margins.bins
    size = max(1, math.ceil(len(bins) / _ROWS))
    for i in range(0, len(bins), size):
        part = bins[i : i + size]
        yield part[0].low, part[-1].high, sum(b.token_layers for b in part), sum(b.flips for b in part)


def _pairs(detail: FlipDetail) -> Table:
    rows = [
        (str(pair.layer), str(pair.reference), str(pair.candidate), str(pair.flips)) for pair in detail.pairs[:_ROWS]
    ]
    return table(columns("layer", "reference", "candidate", "flips"), rows, *_more(detail.distinct_pairs))


def _cost(detail: FlipDetail) -> Table:
    cost = detail.cost
    assert cost is not None
    parts = (("flips in some layer", cost.flipped), ("flips nowhere", cost.unflipped))
    rows = [(name, *_cost_row(part)) for name, part in parts if part is not None]
    note = "Nats per token with 95% intervals over sequences."
    if cost.kl_share is not None:
        note = f"{note} Positions that flip carry {percent(cost.kl_share)} of the KL."
    of = columns("scored", "KL", "|delta log p|", first="position before the token")
    return table(of, rows, Styled(note, "dim"))


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


def _more(total: int) -> list[Phrase]:
    return [Styled(f"{_ROWS} of {total}; more in --json.", "dim")] if total > _ROWS else []
