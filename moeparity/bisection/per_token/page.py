"""Every token on the page: what the flip map, the plot of k3 and the text are drawn of."""

from __future__ import annotations

from typing import Any

import numpy as np

from moeparity.bisection.per_token.report import Array, PerToken
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Figures
from moeparity.output.html.markup import tag
from moeparity.output.html.packing import packed
from moeparity.output.html.page import Block
from moeparity.output.html.plots import legend, plot

CELLS, TOKENS = 2_000_000, 100_000
"""So many cells of the flip map, and so many tokens, a page holds: it stays small enough to be opened and sent."""

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


def _tokens(report: Report) -> Figures:
    tokens = report.per_token
    if tokens is None:
        return
    rows_here = kept_sequences(tokens)
    tools = tag(
        "div",
        [
            tag("label", "Sequence ", for_="sequence"),
            tag("select", id="sequence"),
            tag("button", "Sort by k3", type="button", id="worst", aria_pressed="false"),
        ],
        class_="tools",
    )
    body = legend(_KEYS) + plot("tokens", "k3 by token", tools)
    body += legend(_SHADES) + tag("div", id="text", class_="text")
    if len(rows_here) < tokens.sequences:
        part = f"the {len(rows_here)} of {tokens.sequences} sequences with the greatest k3"
        words = f"The page holds {part}; --per-token has all."
        body += tag("p", words, class_="t-dim")
    yield Block(title="k3 of each token", body=body, data={"tokens": token_data(tokens, rows_here)})


def kept_sequences(tokens: PerToken) -> Array:
    """The indices of the sequences that a page holds, in order: all, or those with the greatest k3."""
    count, length = tokens.real.shape
    layers = max(1, len(tokens.layers))
    most = max(1, min(TOKENS // length, CELLS // (length * layers)))
    order = np.argsort(-np.nan_to_num(tokens.k3, nan=np.inf).sum(1), kind="stable")[:most]
    return np.sort(order) if most < count else np.arange(count)


def token_data(tokens: PerToken, rows_here: Array) -> dict[str, Any]:
    """What the scripts read; of margins and perturbations the power of two they lie below, 255 where not known, and of
    flips the number itself.
    """
    place, sequence, position = tokens.flipped.T
    there = np.isin(sequence, rows_here)
    at = (place[there], sequence[there], position[there])
    rows = np.searchsorted(rows_here, at[1])
    flags = tokens.real.astype(np.uint8) + 2 * tokens.scored
    return {
        "sequences": packed(rows_here.astype(np.int32)),
        "layers": packed(tokens.layers.astype(np.int32)),
        "flags": packed(flags[rows_here].astype(np.uint8)),
        "k3": packed(tokens.k3[rows_here]),
        "kl": packed(tokens.kl[rows_here]),
        "delta": packed(tokens.delta[rows_here]),
        "map": packed(tokens.flips[:, rows_here]),
        "margin": packed(powers(tokens.margin[:, rows_here])),
        "perturbation": packed(powers(tokens.perturbation[:, rows_here])),
        "flipped": packed(np.stack([at[0], rows, at[2]], -1).astype(np.int32)),
        "experts": packed(tokens.experts[there].astype(np.int16)),
        "flipMargin": packed(tokens.margin[at].astype(np.float32)),
        "flipPerturbation": packed(tokens.perturbation[at].astype(np.float32)),
        "pieces": None if tokens.pieces is None else [tokens.pieces[row] for row in rows_here.tolist()],
    }


def powers(ulps: Array) -> Array:
    """uint8: 0 below 1 ulp, i from 2 ** (i - 1) to below 2 ** i, 255 where it is not known or not finite."""
    _, exponent = np.frexp(np.nan_to_num(ulps, nan=0.0, posinf=0.0, neginf=0.0))
    bins = np.clip(exponent, 0, _UNKNOWN - 1).astype(np.uint8)
    return np.where(np.isfinite(ulps), bins, np.uint8(_UNKNOWN))


FIGURES = {"per_token": _tokens}
