"""Both sides' log-probabilities as figures: a scatter of one against the other, and a histogram of their
differences.
"""

from __future__ import annotations

import numpy as np

from moeparity.bisection.per_token.data import Array, PerToken
from moeparity.output.figures import Line, Series
from moeparity.output.words import quantity

DRAWN = 3000
"""A scatter has at most so many points: a reader can tell them apart, and a page stays small."""
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
