"""The interval of a share, by the product's bootstrap-t, holds the true share about as often as it says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.metrics.interval import token_mean
from moeparity.search.memo import Coalition, Memo, Outcome
from moeparity.search.tree import Group
from moeparity.search.waterfall import waterfall
from tests.search.games import outcome, subsets

SEQUENCES, REPLICATIONS = 40, 120
PLAYERS = ("a", "b")


def bounds(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    interval = token_mean(torch.tensor(sums), torch.tensor(tokens), resamples=399)
    return interval.low, interval.high


def sample_sums(generator: torch.Generator) -> dict[Coalition, list[float]]:
    """Per-sequence costs with a long tail; a costs 1 and b 2 in the mean, both together 1 more."""
    a, b, c = torch.empty(3, SEQUENCES, dtype=torch.float64).exponential_(1.0, generator=generator)
    return {frozenset(): [0.0] * SEQUENCES, frozenset("a"): a.tolist(), frozenset("b"): (2 * b).tolist(),
            frozenset("ab"): (a + 2 * b + c).tolist()}  # fmt: skip


def test_the_interval_of_a_share_holds_the_true_share() -> None:
    generator = torch.Generator().manual_seed(0)
    hits = {"a": 0, "b": 0}
    for _ in range(REPLICATIONS):
        sums = sample_sums(generator)
        assert sums.keys() == set(subsets(PLAYERS))

        def evaluate(
            mixtures: Sequence[Coalition], sums: dict[Coalition, list[float]] = sums
        ) -> dict[Coalition, Outcome]:
            return {c: outcome(sum(sums[c]) / SEQUENCES, sums=sums[c]) for c in mixtures}

        chart = waterfall(Memo(PLAYERS, evaluate), Group("all", PLAYERS), bounds)
        for row in chart.shares:
            # The Shapley values of the means: half of what both make together goes to each.
            truth = {"a": 1.5, "b": 2.5}[row.name]
            hits[row.name] += row.interval[0] <= truth <= row.interval[1]
            assert row.interval[0] <= float(row.share) <= row.interval[1]
    # Three binomial standard errors about 0.95 are 0.06.
    assert all(count / REPLICATIONS >= 0.89 for count in hits.values())
    assert sum(hits.values()) < 2 * REPLICATIONS
