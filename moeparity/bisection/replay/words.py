"""The replay ladder in words: how much of a divergence comes by way of the routers' choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from moeparity.bisection.replay.report import Rung

MOST = 0.5
"""From this share of the natural KL on, flips carry most of it."""

_TAKEN = {
    "ids": "With the reference's expert ids forced",
    "ids+weights": "With its routing weights as well",
    "ids+weights+order": "With its slot order as well",
}


def replay_reading(rungs: Sequence[Rung], *, flips: bool) -> list[str]:
    """What a ladder means, from the natural rung on; `flips`: some expert set differs there."""
    natural = rungs[0]
    if natural.exact:
        return ["The candidate's logits have the reference's bits with its own routes."]
    if not natural.kl > 0:
        return [f"KL with natural routes is {natural.kl:g}: there are no shares of it."]
    return [*_steps(rungs, flips=flips), _remainder(rungs[-1], natural)]


def _steps(rungs: Sequence[Rung], *, flips: bool) -> Iterator[str]:
    natural = rungs[0].kl
    for upper, rung in pairwise(rungs):
        if rung.forced == "ids" and not flips:
            yield "No expert set differs, so forcing the ids changes no bit."
            continue
        low, high = rung.kl_change_low, rung.kl_change_high
        if low == high == 0:
            yield f"{_TAKEN[rung.forced]} KL stays as it is."
        elif high < 0:
            fall = (upper.kl - rung.kl) / natural
            clause = f": flips carry {'most' if fall >= MOST else 'part'} of it" if rung.forced == "ids" else ""
            suffix = "" if rung.forced == "ids" else " of the natural KL"
            yield f"{_TAKEN[rung.forced]} KL falls by {fall:.0%}{suffix}{clause}."
        elif low > 0:
            yield f"{_TAKEN[rung.forced]} KL rises by {(rung.kl - upper.kl) / natural:.0%}: errors offset each other."
        else:
            yield f"{_TAKEN[rung.forced]} KL is not shown to change ({low:.2g} to {high:.2g} nats per token)."


def _remainder(rung: Rung, natural: Rung) -> str:
    if rung.exact:
        return "Then every bit of the logits is the reference's: all of the divergence goes by way of the routers."
    return f"{rung.kl / natural.kl:.0%} of KL is left with all routes forced: numerics outside the routers make it."
