"""What updates of the weights under running sequences make; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePart:
    """One part of the divergence: a mean over scored tokens of a difference of log-probabilities, in nats.

    value: by the path that the section takes, with its interval. low, high: the least and the greatest estimate over
    both orders of old weights and old cache. mean_abs: the mean of its size. k3_left: k3 of the tokens against the
    reference once this part and those before it are taken away.
    """

    name: str
    value: Interval
    low: float
    high: float
    mean_abs: float
    k3_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleKeys:
    """Scored tokens whose log-probability is computed from keys that are older than its weights.

    tokens: how many. sequence, token: the first one. lag, oldest_key: how many updates back its weights and the oldest
    key are that it reads.
    """

    tokens: int
    sequence: int
    token: int
    lag: int
    oldest_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagging:
    """The scored tokens of one version of the weights, `lag` updates back: how many, and their k1 and k3."""

    lag: int
    tokens: int
    k1: float
    k3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The divergence of a rollout across updates, log P of the rollout less log P of the trainer, split into parts that
    add up exactly, token by token. A sequence with the tokens of another one counts too, unlike in the verdict: updates
    may come in elsewhere.

    whole: k1 against the trainer on the newest weights; k3 the same of k3. own_weights: k1 against the trainer on each
    token's own weights, and k3. semantics: the choices counted as such. left_out: scored tokens without a finite
    log-probability in some pass, which are in no part.
    """

    whole: Interval
    k3: float
    own_weights: Interval
    own_weights_k3: float
    parts: tuple[UpdatePart, ...]
    by_lag: tuple[Lagging, ...]
    stale_keys: StaleKeys | None
    semantics: tuple[str, ...]
    left_out: int
    reading: tuple[str, ...]
