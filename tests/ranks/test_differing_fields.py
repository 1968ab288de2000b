"""Which fields differ and who has what, in words."""

from __future__ import annotations

from moeparity.ranks.differing_fields import difference, ranks_in_words


def test_ranks_are_runs_in_words() -> None:
    assert [ranks_in_words(ranks) for ranks in ([3], [0, 1, 2], [5, 0, 1, 2])] == [
        "rank 3",
        "ranks 0-2",
        "ranks 0-2, 5",
    ]


def test_the_first_field_is_named_with_both_values_and_the_others_counted() -> None:
    records = {0: {"a": "1", "b": "2", "c": "3"}, 1: {"a": "1", "b": "5", "c": "4"}, 2: {"a": "1", "b": "2", "c": "3"}}
    assert difference(records) == "b: ranks 0, 2 2, rank 1 5 (1 further field differs)"
    assert difference({0: {"a": "1"}, 1: {"a": "1"}}) is None


def test_a_field_that_a_rank_lacks_is_absent_there_but_for_groups_it_is_not_in() -> None:
    assert difference({0: {"a": "1"}, 1: {}}) == "a: rank 0 1, rank 1 absent"
    assert difference({0: {"weights.w": "changed to 1"}, 1: {}}) == "weights.w: rank 0 changed to 1, rank 1 unchanged"
    groups = {0: {"collectives.x": "1"}, 1: {}, 2: {"collectives.x": "1"}}
    assert difference(groups) is None
    groups[2]["collectives.x"] = "2"
    assert difference(groups) == "collectives.x: rank 0 1, rank 2 2"
