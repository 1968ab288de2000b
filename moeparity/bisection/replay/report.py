"""What a report says of forced routes: how much of the divergence comes by way of the routers' choices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The candidate with more and more of the reference's routes: `natural`, `ids`, `ids+weights`, `ids+weights+order`.

    kl: full-vocabulary KL(rung || reference), k3 on the recipe's tokens (which a forced rung did not sample), and
        |delta|; in nats per scored token.
    kl_change_low, _high: bounds of KL less that of the rung above, 95 %, paired over sequences; 0 at the first rung.
    set_flips, slot_flips: shares of token-layers whose expert set, or whose id in some slot, is another one.
    exact: the reference's bits in the logits of all scored tokens.
    """

    forced: str
    kl: float
    kl_change_low: float
    kl_change_high: float
    k3: float
    mean_abs_delta: float
    max_abs_delta: float
    set_flips: float
    slot_flips: float
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedToggle:
    """A toggle alone: KL(trial || reference) in nats per scored token, and the same with the reference's expert ids
    forced: what its numerics do without flips. None where an op refuses the mixture.
    """

    name: str
    alone: float | None
    alone_forced: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The ladder, every toggle with the ids forced, and what they mean; no rungs where routes cannot be forced."""

    rungs: tuple[Rung, ...]
    toggles: tuple[ReplayedToggle, ...]
    reading: tuple[str, ...]
