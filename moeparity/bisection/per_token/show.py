"""Every token as figures: k3 by token, the text of a sequence, and both sides' log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from moeparity.bisection.data import ReportData
from moeparity.bisection.per_token.data import Array, PerToken
from moeparity.bisection.per_token.pictures import histogram, scatter
from moeparity.output.blocks import Group, group
from moeparity.output.figures import Plot, Tool

CELLS, TOKENS = 2_000_000, 100_000
"""A page holds at most so many cells of the flip map and so many tokens, so that it can be opened and sent."""

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
