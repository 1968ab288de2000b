"""Spikes in sentences, with tables of the draws, the causes, what spikes share, and the tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter

from moeparity.bisection.data import ReportData
from moeparity.bisection.spikes.data import CAUSES, NOT_TOLD, NOT_TRIED, ROUTES, UNLIKELY, Spikes, SpikingToken
from moeparity.output.blocks import Block, Group, Styled, bullets, columns, group, lines, table
from moeparity.output.words import percent, quantity

METRIC = "token_mult_prob_error"


def reading(spikes: Spikes) -> Iterator[str]:
    """What the draws say, in sentences."""
    means = [draw.mean for draw in spikes.draws]
    above = sum(mean > spikes.alarm for mean in means)
    yield (
        f"{METRIC} lies between {min(means):.6g} and {max(means):.6g} over {quantity(len(means), 'draw')}, "
        f"median {spikes.median:.6g}; {above} above {spikes.alarm:g}. The highest factor of one token is "
        f"{max(draw.highest for draw in spikes.draws):.4g}."
    )
    if not spikes.spikes:
        yield f"No token spikes: none has a factor above {spikes.above:g} in any draw."
        return
    yield (
        f"{spikes.tokens} of {quantity(spikes.scored, 'scored token')} spike (exp(|delta|) above {spikes.above:g}) in "
        f"some draw, {spikes.always} in every draw; in one draw {_rate(spikes)}."
    )
    yield from _why(spikes)


def _rate(spikes: Spikes) -> str:
    rate = spikes.rate
    is_bounded = math.isfinite(rate.low) and math.isfinite(rate.high)
    return percent(rate.estimate) + (
        f" (95 % over draws: {percent(rate.low)} to {percent(rate.high)})" if is_bounded else ""
    )


def _why(spikes: Spikes) -> Iterator[str]:
    shares = {"routes": spikes.share(*ROUTES), "unlikely": spikes.share(UNLIKELY), "told": spikes.share(NOT_TOLD)}
    if shares["routes"]:
        yield (
            f"Routes make {percent(shares['routes'])} of the spikes: with the reference's experts forced they are gone."
        )
    if shares["unlikely"]:
        yield (
            f"{percent(shares['unlikely'])} are of unlikely tokens: no route makes them, and the likeliest token at "
            "the same place does not spike in the same draw."
        )
    if shares["told"]:
        yield f"Of {percent(shares['told'])} no trial told the cause."
    untried = spikes.share(NOT_TRIED)
    if untried:
        yield f"{percent(untried)} were not tried."


def show(report: ReportData) -> Iterator[Group]:
    """The group about spikes."""
    if report.spikes is not None:
        yield group("Spikes", *_blocks(report.spikes))


def _blocks(spikes: Spikes) -> Iterator[Block]:
    titles = (METRIC, "its worst sequence", "highest factor", "spikes", "they carry")
    rows = [
        (
            str(draw.draw),
            *(f"{value:.5g}" for value in (draw.mean, draw.highest_sequence, draw.highest)),
            *(str(draw.spikes), percent(draw.carried)),
        )
        for draw in spikes.draws
    ]
    note = f"{METRIC}: the mean of exp(|delta|); they carry: the spikes' part of it beyond 1."
    yield table(columns(*titles, first="draw"), rows, Styled(note, "dim"))
    if spikes.spikes:
        yield lines("")
        causes = [(cause.name, str(cause.spikes), str(cause.tokens)) for cause in spikes.causes if cause.spikes]
        meanings = [f"{cause.name}: {CAUSES[cause.name]}." for cause in spikes.causes if cause.spikes]
        yield table(columns("spikes", "tokens", first="cause"), causes, *(Styled(text, "dim") for text in meanings))
        yield lines("")
        shared = [(trait.name, _percent(trait.of_spikes), _percent(trait.of_all)) for trait in spikes.shared]
        yield table(columns("of spikes", "of all tokens", first="what they share"), shared)
        yield lines("")
        yield _tokens(spikes)
    yield bullets(spikes.reading)


def _percent(share: float) -> str:
    return "" if math.isnan(share) else percent(share)


def _tokens(spikes: Spikes) -> Block:
    has_labels = any(token.label for token in spikes.listed)
    titles = (
        "id",
        *(["class"] if has_labels else []),
        "P",
        "draws",
        "highest",
        "median",
        "flips",
        "layer",
        "tie",
        "cause",
    )
    rows = [
        (
            f"{token.sequence}:{token.token}",
            str(token.token_id),
            *([token.label] if has_labels else []),
            f"{math.exp(token.log_p):.2g}",
            f"{token.draws}",
            *(f"{factor:.4g}" for factor in (token.highest, token.median)),
            str(token.flips),
            "" if token.layer is None else str(token.layer),
            _tie(token),
            _cause(token),
        )
        for token in spikes.listed
    ]
    rest = spikes.tokens - len(spikes.listed)
    note = (
        f"token: of which sequence; draws: in which it spikes, of {len(spikes.draws)}; flips: in how many of all its "
        "own route differs; layer: where it does first; tie: how many tokens have a smaller margin there in the "
        "reference; cause: the most frequent one."
    )
    notes = [note, *([f"{rest} more"] if rest else [])]
    return table(columns(*titles, first="token"), rows, *(Styled(note, "dim") for note in notes))


def _tie(token: SpikingToken) -> str:
    if math.isnan(token.margin):
        return ""
    return percent(token.margin_rank) if token.margin else "tied"


def _cause(token: SpikingToken) -> str:
    """The most frequent cause, and in how many of its draws."""
    name, count = max(token.causes.items(), key=itemgetter(1))
    return name if count == token.draws else f"{name} ({count} of {token.draws})"
