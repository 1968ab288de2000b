"""How much of the divergence comes through the routers' choices, found by forcing routes; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """The candidate with some of the reference's routes: `natural` (none), `ids`, `ids+weights`, `ids+weights+order`;
    `logits`, with the reference's router logits, of which its own routers make routes; or, where attention is sparse,
    `keys` with the keys that the reference's indexers chose, and `ids+keys` with its expert ids as well.

    kl, k3, mean_abs_delta, max_abs_delta: full-vocabulary KL(rung || reference), k3 on the recipe's tokens (which a
        forced rung did not sample), and |delta|; in nats per scored token.
    kl_change_low, kl_change_high: 95 % bounds of this KL minus that of the rung above (for `logits` and `keys` the
        natural one, for `ids+keys` that of `ids`), paired over sequences; 0 at the first rung.
    set_flips, slot_flips: fraction of token-layers with another expert set, or with another id in some slot.
    exact: the logits of all scored tokens have the reference's bits.
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
    """A toggle alone: KL(trial || reference) in nats per scored token, and the same KL with the reference's expert ids
    forced, which is what its numerics do without flips. None if an op refuses the mixture.
    """

    name: str
    alone: float | None
    alone_forced: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTrap:
    """The candidate with the reference's routes as a trainer takes them over that makes a mistake; or with the routes
    that the token file has, made by whoever recorded them.

    name: the mistake. kind: the rung of the same replay without it. kl, k3, mean_abs_delta, max_abs_delta: as in
        `Rung`.
    price_low, price_high: 95 % bounds of this KL minus that of the rung `kind`, paired over sequences.
    beyond_natural: the lower one of this KL minus the natural one; a replay with this mistake is worse than none if it
        is above 0.
    """

    name: str
    kind: str
    kl: float
    price_low: float
    price_high: float
    beyond_natural: float
    k3: float
    mean_abs_delta: float
    max_abs_delta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The ladder, every toggle with the ids forced, replays with a mistake, and what they mean; no rungs if routes
    cannot be forced.
    """

    rungs: tuple[Rung, ...]
    toggles: tuple[ReplayedToggle, ...]
    reading: tuple[str, ...]
    traps: tuple[PlantedTrap, ...] = ()
