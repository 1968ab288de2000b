"""The memo: batches, counts, and answers that are missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moeparity.search.memo import Effort, Memo, Mixture, Outcome
from tests.search.games import memo_of, names, outcome

A, B = frozenset({"t0"}), frozenset({"t1"})


def test_asks_each_mixture_once_and_in_one_batch() -> None:
    batches: list[list[Mixture]] = []

    def evaluate(batch: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        batches.append(list(batch))
        return {mixture: outcome(float(len(mixture))) for mixture in batch}

    memo = Memo(names(2), evaluate)
    answers = memo.ask([A, B, A])
    assert [answer.value for answer in answers] == [1.0, 1.0, 1.0]
    assert memo[B] is answers[1]
    start = memo.effort
    memo.ask([A, A | B])
    assert batches == [[A, B], [A | B]]
    assert memo.effort == Effort(mixtures=3, batches=2)
    assert memo.since(start) == Effort(mixtures=1, batches=1)


def test_remembers_a_refusal() -> None:
    memo = memo_of(names(2), lambda _: None)
    assert memo[A] is None
    assert memo[A] is None
    assert memo.mixtures == 1


def test_no_strangers_no_repeats_no_gaps() -> None:
    with pytest.raises(ValueError, match=r"mixtures of \['x'\]"):
        memo_of(names(2), lambda _: 1.0).ask([frozenset({"x"})])
    with pytest.raises(ValueError, match="every name once"):
        memo_of(("a", "a"), lambda _: 1.0)
    with pytest.raises(ValueError, match=r"no answer for \[\['t0'\]\]"):
        Memo(names(2), lambda _: {}).ask([A])
