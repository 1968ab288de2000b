"""Metrics and flips of each token, as numpy arrays; they are not part of the JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    # Plans and outlines import reports, and are made without numpy.
    Array = Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerToken:
    """Every token of the run: B sequences of T tokens, L layers with a router, N flips, K experts per token.

    input_ids: int64 [B, T]. They are text, so a page or a token file has them only if text is asked for; a run's folder
        always has them.
    real: bool [B, T], False at pads. scored: bool [B, T], the token counts.
    k3, kl, delta: fp32 [B, T] in nats: k3, KL(candidate || reference) and delta of scored tokens, as `TokenMetrics`
        defines them; 0 at tokens that are not scored.
    reference_logprob, candidate_logprob: fp32 [B, T], log P of the token on each side, in nats; 0 at tokens that are
        not scored, NaN in a run that an earlier version kept.
    layers: int64 [L], the number in the model of each layer with a router.
    flips: uint8 [L, B, T], the bits of `census.MAP_BITS`. The routes of a position make the log-probability of the next
        token.
    margin, perturbation: fp32 [L, B, T] at the cut, in ulps of the reference's selection scores; NaN if unknown.
    flipped: int64 [N, 3], each flip's index into `layers`, sequence and position, sorted in this order.
    experts: int64 [N, 2, K], what the reference and the candidate chose there.
    update_parts: fp64 [4, B, T], the parts of `moeparity.bisection.updates.split.PARTS` in nats, which add up exactly
        to log P(rollout) - log P(trainer); 0 at tokens that are in no part. None where no weights change.
    pieces: the text of each token, [B][T]; None unless it is asked for.
    """

    input_ids: Array
    real: Array
    scored: Array
    k3: Array
    kl: Array
    delta: Array
    reference_logprob: Array
    candidate_logprob: Array
    layers: Array
    flips: Array
    margin: Array
    perturbation: Array
    flipped: Array
    experts: Array
    update_parts: Array | None = None
    pieces: tuple[tuple[str, ...], ...] | None = None

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return int(self.real.shape[0])
