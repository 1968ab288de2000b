"""The parts of a divergence across updates, in a table and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.updates.data import StaleKeys, UpdatePart, Updates
from moeparity.errors import counted
from moeparity.metrics.verdict import Interval
from moeparity.output.blocks import Group, bullets, columns, group, lines, table
from moeparity.output.words import between

_TAKEN = {
    "old cache": "the cache computed by each token's own weights",
    "old weights": "the newest weights for all tokens",
    "semantics": "the trainer's semantics",
    "numerics": "the trainer itself",
}
"""What stands in place of each part once it is taken away."""


def updates_reading(
    parts: Sequence[UpdatePart], stale_keys: StaleKeys | None, tokens: int, own_weights_k3: float, left_out: int
) -> list[str]:
    """What the split means, in sentences. own_weights_k3: k3 against the trainer on each token's own weights."""
    sentences = [_stale(stale_keys, tokens)]
    largest = max(parts, key=lambda part: part.mean_abs)
    sentences.append(f"The largest part, by the size that it has at a token: {largest.name}.")
    if any(part.low != part.high for part in parts):
        sentences.append(
            "How old weights and old cache share what both make depends on which is replaced first: see both orders."
        )
    sentences.append(f"k3 against the trainer on each token's own weights: {own_weights_k3:.3g}.")
    if left_out:
        sentences.append(f"Left out: {counted(left_out, 'token')} without a finite log-probability in some pass.")
    return sentences


def _stale(stale_keys: StaleKeys | None, tokens: int) -> str:
    if stale_keys is None:
        return "Stale keys: none. No scored token is computed from keys that are older than its weights."
    return (
        f"Stale keys: {stale_keys.tokens} of {counted(tokens, 'scored token')} computed from keys that are older than "
        f"their weights. First: sequence {stale_keys.sequence}, token {stale_keys.token}, on weights "
        f"{_back(stale_keys.lag)}, with keys of weights {_back(stale_keys.oldest_key)}."
    )


def _back(lag: int) -> str:
    return "of the checkpoint" if not lag else f"{counted(lag, 'update')} back"


def show(report: ReportData) -> Iterator[Group]:
    """The group about weights that change under running sequences."""
    updates = report.updates
    if updates is None:
        return
    yield group(
        "Weights that change under running sequences",
        table(
            columns("k1", "95%", "both orders", "size", "k3 left", first="part"),
            [*map(_part_row, updates.parts), ("whole", _short(updates.whole.estimate), *_whole_row(updates))],
            "Parts of log P(rollout) - log P(trainer), nats per token; at each token they add up exactly.",
            "both orders: k1 with old cache or old weights replaced first. size: the mean of |part|.",
            "k3 left: with " + ", then ".join(_TAKEN[part.name] for part in updates.parts) + "; whole: as it was.",
        ),
        lines(""),
        table(columns("tokens", "k1", "k3", first="weights of the token"), list(_lag_rows(updates))),
        bullets(updates.reading),
    )


def _part_row(part: UpdatePart) -> tuple[str, ...]:
    orders = "" if part.low == part.high else f"[{_short(part.low)}, {_short(part.high)}]"
    k1 = _short(part.value.estimate)
    return part.name, k1, _bounds(part.value), orders, _short(part.mean_abs), _short(part.k3_left)


def _whole_row(updates: Updates) -> tuple[str, ...]:
    return _bounds(updates.whole), "", "", _short(updates.k3)


def _short(number: float) -> str:
    return f"{number:.1e}" if number else "0"


def _bounds(value: Interval) -> str:
    return "0" if value.low == value.high == 0 else between(value.low, value.high, ".1e")


def _lag_rows(updates: Updates) -> Iterator[tuple[str, ...]]:
    for of_lag in updates.by_lag:
        yield _back(of_lag.lag), f"{of_lag.tokens:,}", _short(of_lag.k1), _short(of_lag.k3)
