"""Every token as figures: k3 by token, the text of a sequence, and both sides' log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from moeparity.bisection.data import ReportData
from moeparity.bisection.per_token.data import Array, PerToken
from moeparity.output.blocks import Group, group
from moeparity.output.figures import Line, Plot, Series, Tool
from moeparity.output.words import quantity

DRAWN = 3000
"""A scatter has at most this many points: a reader can tell them apart, and a page stays small."""
_FARTHEST = DRAWN // 3
_BINS = 41


def scatter(tokens: PerToken) -> Series | None:
    """Each scored token's log P on the candidate against that on the reference; None if all are equal or none is
    comparable.
    """
    sequence, position = _comparable(tokens)
    ours, theirs = tokens.reference_logprob[sequence, position], tokens.candidate_logprob[sequence, position]
    if (ours == theirs).all():
        return None
    drawn = _drawn(np.abs(ours - theirs))
    drawn = drawn[np.argsort(ours[drawn], kind="stable")]
    x = ours[drawn].astype(float).tolist()
    words = [
        [f"sequence {s}, position {p}", f"reference {a:.6g}, candidate {b:.6g} nats", f"difference {b - a:.3g}"]
        for s, p, a, b in zip(sequence[drawn], position[drawn], ours[drawn], theirs[drawn], strict=True)
    ]
    left_out = len(ours) - len(drawn)
    return Series(
        title="Log-probabilities of both sides",
        name="scatter",
        label="the candidate's log-probability of each token over the reference's",
        x=x,
        x_label="reference: log P(token), nats",
        y_label="candidate, nats",
        lines=[
            Line(label="token", values=theirs[drawn].astype(float).tolist(), look="points"),
            Line(label="equal", values=x),
        ],
        words=words,
        note=f"The {_FARTHEST:,} tokens farthest apart and others evenly; {left_out:,} are not drawn." * (left_out > 0),
    )


def histogram(tokens: PerToken) -> Series | None:
    """How many tokens differ by how much; None if all are equal or none is comparable."""
    sequence, position = _comparable(tokens)
    at = (sequence, position)
    difference = tokens.candidate_logprob[at].astype(float) - tokens.reference_logprob[at]
    reach = float(np.abs(difference).max(initial=0.0))
    if not reach:
        return None
    counts, edges = np.histogram(difference, bins=_BINS, range=(-reach, reach))
    centres = ((edges[:-1] + edges[1:]) / 2).tolist()
    return Series(
        title="Their difference",
        name="differences",
        label="how many tokens have which difference of log-probabilities",
        x=centres,
        x_label="log P(token), candidate - reference, nats",
        y_label="tokens",
        lines=[Line(label="tokens", values=counts.astype(float).tolist(), look="bars")],
        words=[
            [f"{low:.3g} to {high:.3g} nats", quantity(int(count), "token")]
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
    )


def _comparable(tokens: PerToken) -> tuple[Array, Array]:
    """Sequence and position of the scored tokens whose log-probabilities are finite on both sides."""
    finite = np.isfinite(tokens.reference_logprob) & np.isfinite(tokens.candidate_logprob)
    sequence, position = np.nonzero(tokens.scored & finite)
    return sequence, position


def _drawn(distance: Array) -> Array:
    """Indices of the points to draw: all, or those with the largest distance and an even selection of the others."""
    if len(distance) <= DRAWN:
        return np.arange(len(distance))
    order = np.argsort(-distance, kind="stable")
    others = np.sort(order[_FARTHEST:])
    even = others[np.linspace(0, len(others) - 1, DRAWN - _FARTHEST).astype(int)]
    return np.concatenate([order[:_FARTHEST], even])


CELLS, TOKENS = 2_000_000, 100_000
"""The most cells of the flip map, and the most tokens, that a page holds, so that it can be opened and sent."""

_UNKNOWN = 255
_KEYS = {"tok": "token", "tokflip": "the position that scores it flips in some layer"}
_SHADES = {
    "q0": "k3 below 1e-5",
    "q1": "1e-4",
    "q2": "1e-3",
    "q3": "1e-2",
    "q4": "1e-1",
    "q5": "above, or not finite",
    "own": "the token's own routes flip",
}
_TOOLS = (
    Tool(key="sequence", text="Sequence ", kind="choice"),
    Tool(key="worst", text="Sort by k3", kind="toggle"),
)


def show_log_probs(report: ReportData) -> Iterator[Group]:
    """The group of figures of both sides' log-probabilities."""
    tokens = report.per_token
    pictures = () if tokens is None else [drawn for draw in (scatter, histogram) if (drawn := draw(tokens)) is not None]
    if pictures:
        yield group("Log-probabilities", *pictures)


def show(report: ReportData) -> Iterator[Group]:
    """The group about k3 of each token."""
    tokens = report.per_token
    if tokens is None or not (report.roots or tokens.pieces or np.nan_to_num(tokens.k3, nan=1.0).any()):
        return
    rows_here = kept_sequences(tokens)
    part = f"the {len(rows_here)} of {tokens.sequences} sequences with the greatest k3"
    picture = Plot(
        title="k3 of each token",
        name="tokens",
        label="k3 by token",
        data=token_data(tokens, rows_here),
        keys=_KEYS,
        tools=_TOOLS,
        below=_SHADES,
        note=f"The page holds {part}; --per-token has all." if len(rows_here) < tokens.sequences else "",
    )
    yield group("k3 of each token", picture)


def kept_sequences(tokens: PerToken) -> Array:
    """The indices of the sequences that a page holds, in order: all, or those with the largest k3."""
    count, length = tokens.real.shape
    layers = max(1, len(tokens.layers))
    most = max(1, min(TOKENS // length, CELLS // (length * layers)))
    order = np.argsort(-np.nan_to_num(tokens.k3, nan=np.inf).sum(1), kind="stable")[:most]
    return np.sort(order) if most < count else np.arange(count)


def token_data(tokens: PerToken, rows_here: Array) -> dict[str, Any]:
    """The data for the page's scripts. Margins and perturbations are given as `powers`."""
    place, sequence, position = tokens.flipped.T
    there = np.isin(sequence, rows_here)
    at = (place[there], sequence[there], position[there])
    rows = np.searchsorted(rows_here, at[1])
    flags = tokens.real.astype(np.uint8) + 2 * tokens.scored
    return {
        "sequences": rows_here.astype(np.int32),
        "layers": tokens.layers.astype(np.int32),
        "flags": flags[rows_here].astype(np.uint8),
        "k3": tokens.k3[rows_here],
        "kl": tokens.kl[rows_here],
        "delta": tokens.delta[rows_here],
        "map": tokens.flips[:, rows_here],
        "margin": powers(tokens.margin[:, rows_here]),
        "perturbation": powers(tokens.perturbation[:, rows_here]),
        "flipped": np.stack([at[0], rows, at[2]], -1).astype(np.int32),
        "experts": tokens.experts[there].astype(np.int16),
        "flipMargin": tokens.margin[at].astype(np.float32),
        "flipPerturbation": tokens.perturbation[at].astype(np.float32),
        "pieces": None if tokens.pieces is None else [tokens.pieces[row] for row in rows_here.tolist()],
    }


def powers(ulps: Array) -> Array:
    """uint8: 0 below 1 ulp, i from 2 ** (i - 1) to below 2 ** i ulps, 255 if unknown or not finite."""
    _, exponent = np.frexp(np.nan_to_num(ulps, nan=0.0, posinf=0.0, neginf=0.0))
    bins = np.clip(exponent, 0, _UNKNOWN - 1).astype(np.uint8)
    return np.where(np.isfinite(ulps), bins, np.uint8(_UNKNOWN))
