"""The interval of a share, by the product's bootstrap-t, holds the true share about as often as it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from moeparity.metrics.interval import tail_mean, token_mean
from moeparity.search.memo import Memo, Mixture, Outcome
from moeparity.search.roles import Role
from moeparity.search.tree import Group
from moeparity.search.waterfall import waterfall
from tests.search.games import outcome, subsets

SEQUENCES, REPLICATIONS = 40, 120
PLAYERS = ("a", "b")


def bounds(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    interval = token_mean(torch.tensor(sums), torch.tensor(tokens), resamples=399)
    return interval.low, interval.high


def widened(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    interval = tail_mean(torch.tensor(sums), torch.tensor(tokens), resamples=399)
    return interval.low, interval.high


def sample_sums(generator: torch.Generator) -> dict[Mixture, list[float]]:
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

        def evaluate(mixtures: Sequence[Mixture], sums: dict[Mixture, list[float]] = sums) -> dict[Mixture, Outcome]:
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


@pytest.mark.parametrize("rate", [0.05, 0.15])
def test_no_sign_is_said_that_the_population_does_not_have_where_few_sequences_carry_it(rate: float) -> None:
    """A class of cases: b's cost comes in a few sequences, and in half of them it undoes what a makes in others."""
    generator = torch.Generator().manual_seed(7)
    signs, holds, shares = 0, 0, 0
    for _ in range(40):
        a, size, hits, sign = torch.rand(4, SEQUENCES, dtype=torch.float64, generator=generator)
        cost = -size.log() * 5 * (hits < rate) * torch.where(sign < 0.5, 1.0, -1.0)
        # As often up as down, so that b's true share is 0; a's is 1.
        whole = (a + cost + 20).tolist()
        alone = {frozenset(): [0.0] * SEQUENCES, frozenset("a"): (a + 20).tolist(), frozenset("b"): cost.tolist()}
        game = {**alone, frozenset("ab"): whole}

        def evaluate(mixtures: Sequence[Mixture], game: dict[Mixture, list[float]] = game) -> dict[Mixture, Outcome]:
            return {c: outcome(sum(game[c]) / SEQUENCES, sums=game[c]) for c in mixtures}

        _, b = waterfall(Memo(PLAYERS, evaluate), Group("all", PLAYERS), widened).shares
        shares += 1
        holds += b.interval[0] <= 0 <= b.interval[1]
        signs += b.role in (Role.CULPRIT, Role.CONTRIBUTES, Role.HELPS)
        if b.role is Role.UNDECIDED and all(map(math.isfinite, b.interval)):
            assert b.needed is None or b.needed > SEQUENCES
    # Three binomial standard errors of 40 about 0.95 are 0.10.
    assert holds / shares >= 0.85
    assert signs <= shares - holds


def test_a_culprits_interval_is_finite_and_lies_above_nothing() -> None:
    """Whatever the sequences are, of which as few as two carry anything."""
    generator = torch.Generator().manual_seed(3)
    roles = set()
    for carrying in (1, 2, 3, 4, 6, 10, 40):
        for _ in range(4):
            a, b = torch.rand(2, SEQUENCES, dtype=torch.float64, generator=generator)
            a[carrying:] = 0
            sums = {frozenset(): [0.0] * SEQUENCES, frozenset("a"): a.tolist(), frozenset("b"): (b / 99).tolist()}
            sums[frozenset("ab")] = (a + b / 99).tolist()

            def evaluate(
                mixtures: Sequence[Mixture], game: dict[Mixture, list[float]] = sums
            ) -> dict[Mixture, Outcome]:
                return {c: outcome(sum(game[c]) / SEQUENCES, sums=game[c]) for c in mixtures}

            for row in waterfall(Memo(PLAYERS, evaluate), Group("all", PLAYERS), widened).shares:
                roles.add(row.role)
                if row.role in (Role.CULPRIT, Role.CONTRIBUTES):
                    assert all(math.isfinite(bound) for bound in (*row.interval, *row.part))
                    assert row.interval[0] > 0 < row.part[0]
                if carrying < 3 and row.name == "a":
                    assert row.role is Role.UNDECIDED
    assert {Role.UNDECIDED, Role.CULPRIT} <= roles
