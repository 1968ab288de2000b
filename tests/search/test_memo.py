"""The memo: batches, counts, and answers that are missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moeparity.search.memo import Coalition, Oracle, Outcome, Spent
from tests.search.games import names, oracle, outcome

A, B = frozenset({"t0"}), frozenset({"t1"})


def test_asks_each_mixture_once_and_in_one_batch() -> None:
    asked: list[list[Coalition]] = []

    def evaluate(batch: Sequence[Coalition]) -> dict[Coalition, Outcome | None]:
        asked.append(list(batch))
        return {coalition: outcome(float(len(coalition))) for coalition in batch}

    memo = Oracle(names(2), evaluate)
    answers = memo.ask([A, B, A])
    assert [answer.value for answer in answers] == [1.0, 1.0, 1.0]
    assert memo[B] is answers[1]
    before = memo.spent
    memo.ask([A, A | B])
    assert asked == [[A, B], [A | B]]
    assert memo.spent == Spent(mixtures=3, batches=2)
    assert memo.since(before) == Spent(mixtures=1, batches=1)


def test_remembers_a_refusal() -> None:
    memo = oracle(names(2), lambda _: None)
    assert memo[A] is None
    assert memo[A] is None
    assert memo.mixtures == 1


def test_no_strangers_no_repeats_no_gaps() -> None:
    with pytest.raises(ValueError, match=r"mixtures of \['x'\]"):
        oracle(names(2), lambda _: 1.0).ask([frozenset({"x"})])
    with pytest.raises(ValueError, match="every name once"):
        oracle(("a", "a"), lambda _: 1.0)
    with pytest.raises(ValueError, match=r"no answer for \[\['t0'\]\]"):
        Oracle(names(2), lambda _: {}).ask([A])
