"""What each setting of a launch configuration does, and in which order to set them; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from moeparity.output.json import to_json

SCHEMA = "moeparity.ablation/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""

Tier = Literal["semantics", "inference path", "objective"]
"""What a setting changes: what the reported log-probabilities are of; the kernels, dtypes, ranks and batches that they
are computed with; or what a trainer does with them.
"""
Effect = Literal["lowers", "raises", "not shown", "no effect", "refused", "not put"]
"""What putting it back in the second configuration does to the KL. `not shown`: the interval holds 0. `not put`:
nothing here computes it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting in which the configurations differ: an option, or a choice that none of the options makes.

    first, second: its values, first_where, second_where: the line, or whose default it is. cure: what gives the second
    configuration the first one's value; empty if nothing is known to. choices: what it changes in the numerics.
    alone: KL, nats per scored token, of the first configuration with this one setting of the second. back: that of the
    second with this one setting of the first, once all tiers above are as in the first. None if it was not put or an op
    refuses it. change_low, change_high: 95 % interval of `back` minus the tier's KL, paired over sequences. says: why
    it was not put, or has no effect.
    """

    name: str
    tier: Tier
    option: bool
    first: str
    second: str
    first_where: str
    second_where: str
    cure: str
    choices: tuple[str, ...]
    alone: float | None
    back: float | None
    change_low: float
    change_high: float
    effect: Effect
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredSetting:
    """A setting put back after those before it, and the KL, nats per scored token, that is then left; with the 95 %
    interval of its change.
    """

    name: str
    cure: str
    left: float
    change_low: float
    change_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Two launch configurations, the first of which is the reference.

    first_release, second_release: engine and release. sequences, tokens: how many, of which so many are scored. tiers:
    the KL before each tier is restored, all tiers above it restored. kl, k3: of the second against the first with all
    settings as they are, nats per scored token. order: the settings that can be set, each step the one that leaves the
    least KL. left: what no setting restores.
    """

    first: str
    second: str
    first_release: str
    second_release: str
    role: str
    checkpoint: str
    sequences: int
    tokens: int
    tiers: Mapping[str, float]
    kl: float
    k3: float
    exact: bool
    settings: tuple[Setting, ...]
    order: tuple[RestoredSetting, ...]
    left: float
    mixtures: int
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        """The data as strict JSON, with the name of its schema."""
        return to_json(SCHEMA, self)
