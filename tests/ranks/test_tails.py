"""Where control flow diverged, by what ranks have called last."""

from __future__ import annotations

from moeparity.ranks.tails import Waiting, first_disagreement


def tail(*calls: str, first: int = 0) -> str:
    """The tail of a group in which these were called."""
    return "\n".join(f"{number}\t{call}\tjob.py:{number}" for number, call in enumerate(calls, first))


def test_ranks_that_called_the_same_have_not_diverged() -> None:
    assert first_disagreement({0: {"collectives.0": tail("a", "b")}, 1: {"collectives.0": tail("a", "b")}}) is None


def test_what_an_old_tail_lacks_counts_only_where_the_rank_is_known_to_wait() -> None:
    tails = {rank: {"collectives.0": tail("a", "b") if rank else tail("a")} for rank in range(3)}
    assert first_disagreement(tails) is None
    assert first_disagreement(tails, dict.fromkeys(range(3), Waiting("at the end"))) == (
        "collectives.0: the first that differs is number 1: rank 0 none, at the end; ranks 1-2 b at job.py:1"
    )
    assert first_disagreement(tails, {1: Waiting("in call 1"), 2: Waiting("in call 1")}) is None


def test_a_group_in_which_a_rank_called_nothing_yet_counts() -> None:
    tails = {0: {"collectives.1": tail("a")}, 1: {"collectives.1": ""}, 2: dict[str, str]()}
    words = first_disagreement(tails, dict.fromkeys(range(3), Waiting("in call 0")))
    assert words == "collectives.1: the first that differs is number 0: rank 0 a at job.py:0; rank 1 none, in call 0"


def test_different_calls_come_before_what_a_rank_lacks_that_waits_elsewhere() -> None:
    """Rank 2 is held up in group 1, where rank 1 called another shape; that it lacks a call of group 0 is a result."""
    tails = {
        0: {"collectives.0": tail("a", "b")},
        1: {"collectives.0": tail("a", "b"), "collectives.1": tail("x[9]")},
        2: {"collectives.0": tail("a"), "collectives.1": tail("x[6]")},
    }
    words = first_disagreement(tails, dict.fromkeys(range(3), Waiting("in call 0")))
    assert (
        words == "collectives.1: the first that differs is number 0: rank 1 x[9] at job.py:0; rank 2 x[6] at job.py:0"
    )


def test_a_rank_that_is_held_up_in_a_collective_has_not_left_out_the_next_one() -> None:
    """A broadcast's receiver may be done with it before its root is: rank 2 is slow, and no control flow diverged."""
    tails = {0: {"collectives.0": tail("a", "b")}, 1: {"collectives.0": tail("a")}, 2: {"collectives.0": ""}}
    held_up = {rank: Waiting(f"in collective {1 - rank}", "collectives.0") for rank in range(2)}
    assert first_disagreement(tails, held_up) is None


def test_ranks_that_wait_for_each_other_in_two_groups_are_named_in_both() -> None:
    tails = {
        0: {"collectives.0": tail("a"), "collectives.1": ""},
        1: {"collectives.0": "", "collectives.1": tail("b")},
    }
    assert first_disagreement(
        tails, {0: Waiting("in call 0", "collectives.0"), 1: Waiting("in call 0", "collectives.1")}
    ) == (
        "collectives.0: the first that differs is number 0: rank 0 a at job.py:0; rank 1 none, in call 0. "
        "collectives.1: the first that differs is number 0: rank 0 none, in call 0; rank 1 b at job.py:0"
    )


def test_only_numbers_that_all_still_keep_are_held_to_each_other() -> None:
    tails = {0: {"collectives.0": tail("c", "d", first=5)}, 1: {"collectives.0": tail("x", "c", "e", first=4)}}
    words = first_disagreement(tails)
    assert words == "collectives.0: the first that differs is number 6: rank 0 d at job.py:6; rank 1 e at job.py:6"
