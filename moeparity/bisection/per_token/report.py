"""Each token by itself; arrays of numpy, which no JSON holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    # Plans and their outlines know reports, and are made without numpy.
    Array = Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerToken:
    """Every token of the run: B sequences of T tokens, L layers that route, N flips, K experts per token.

    input_ids: int64 [B, T]; they are text, and go onto no page and into no file of tokens unless text is
        asked for; a run's folder holds them.
    real: bool [B, T], False at pads. scored: bool [B, T], the token counts.
    k3, kl, delta: fp32 [B, T] in nats: k3, KL(candidate || reference) and delta of scored tokens, as `TokenMetrics`
        defines them; 0 where none is scored.
    layers: int64 [L], the model's number of each layer that routes.
    flips: uint8 [L, B, T], the bits of `census.MAP_BITS`. A position's routes make the log-probability of the next
        token.
    margin, perturbation: fp32 [L, B, T] at the cut, in ulps of the reference's selection scores; NaN where not known.
    flipped: int64 [N, 3], the place among `layers`, the sequence and the position of each flip, in this order.
    experts: int64 [N, 2, K], what the reference and the candidate chose there.
    pieces: the text of each token, [B][T]; None unless it is asked for.
    """

    input_ids: Array
    real: Array
    scored: Array
    k3: Array
    kl: Array
    delta: Array
    layers: Array
    flips: Array
    margin: Array
    perturbation: Array
    flipped: Array
    experts: Array
    pieces: tuple[tuple[str, ...], ...] | None = None

    @property
    def sequences(self) -> int:
        """How many sequences there are."""
        return int(self.real.shape[0])
