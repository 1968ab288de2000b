"""Shares and fix sets in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeparity.bisection.shares.reading import fix_reading, share_reading
from moeparity.search.fixes import Fixes, fix_sets, may_stay
from moeparity.search.interactions import interactions
from moeparity.search.memo import Memo, Mixture, Outcome
from moeparity.search.roles import Role
from moeparity.search.tree import Group
from moeparity.search.waterfall import Waterfall, waterfall
from tests.search.games import memo_of, no_bounds, outcome


def table(**values: float | None) -> dict[Mixture, float | None]:
    return {frozenset(): 0.0, **{frozenset(name): value for name, value in values.items()}}


def shared(game: Mapping[Mixture, float | None]) -> Waterfall:
    players = tuple(sorted(frozenset().union(*game)))
    return waterfall(memo_of(players, game.__getitem__), Group("all", players), no_bounds)


def fixed(game: Mapping[Mixture, float | None], gate: float) -> Fixes:
    players = tuple(sorted(frozenset().union(*game)))
    return fix_sets(memo_of(players, game.__getitem__), gate)


def speak(game: Mapping[Mixture, float | None], forced: Waterfall | None = None, in_fp32: float | None = None) -> str:
    return "\n".join(share_reading(shared(game), forced, [], in_fp32, "bf16"))


def test_the_strongest_pair_unless_all_stand_in_for_each_other() -> None:
    game = table(a=0.1, b=0.1, ab=1.0)
    pairs = interactions(memo_of(("a", "b"), game.__getitem__), ["a", "b"], no_bounds)
    words = share_reading(shared(game), None, pairs, None, "bf16")
    assert words[-1] == "a and b interact: together they cost 80% of the KL more than the sum of both alone."
    unsure = interactions(memo_of(("a", "b"), game.__getitem__), ["a", "b"], lambda *_: (-1.0, 1.0))
    assert not any("interact" in sentence for sentence in share_reading(shared(game), None, unsure, None, "bf16"))
    full = table(a=0.9, b=0.8, ab=1.0)
    pairs = interactions(memo_of(("a", "b"), full.__getitem__), ["a", "b"], no_bounds)
    assert not any("interact" in sentence for sentence in share_reading(shared(full), None, pairs, None, "bf16"))


def test_nothing_is_said_of_one_toggle_or_of_no_divergence() -> None:
    assert speak(table(a=1.0)) == ""
    assert speak(table(a=0.0, b=0.0, ab=0.0)) == ""


def test_what_is_left_without_flips_is_laid_to_one_only_where_it_makes_most_of_it() -> None:
    game, even = table(a=0.2, b=0.8, ab=1.0), table(a=0.19, b=0.2, ab=0.39)
    assert speak(game, shared(even)).endswith("KL is 3.90e-01 (39%); of what is left without flips, b makes most: 51%.")
    several = table(a=0.1, b=0.1, c=0.1, ab=0.2, ac=0.2, bc=0.2, abc=0.3)
    assert speak(game, shared(several)).endswith("KL is 3.00e-01 (30%).")
    wide = waterfall(memo_of(("a", "b"), even.__getitem__), Group("all", ("a", "b")), lambda *_: (0.01, 0.5))
    assert speak(game, wide).endswith("KL is 3.90e-01 (39%).")


def test_toggles_that_undo_each_other_to_the_last_bit_are_told() -> None:
    """As a pair, which is told beside the toggles: neither is said to help, whatever the sign of its share."""
    for ab in (0.0, 0.01):
        game = table(a=1.0, b=1.5, ab=ab)
        assert [(pair.first, pair.second, pair.together) for pair in shared(game).pairs] == [("a", "b", ab)]
        assert [share.role for share in shared(game).shares] == [Role.OFFSETS, Role.OFFSETS]
        assert speak(game) == ""


def test_what_a_pair_that_offsets_each_other_makes_is_no_majority_and_no_interaction() -> None:
    game = table(a=1.0, b=1.5, c=0.2, ab=0.01, ac=1.2, bc=1.7, abc=0.21)
    memo = memo_of(("a", "b", "c"), game.__getitem__)
    pairs = interactions(memo, ["a", "b", "c"], no_bounds)
    sentences = share_reading(shared(game), shared(table(a=1.0, b=1.5, ab=0.01)), pairs, None, "bf16")
    assert not any("interact" in sentence or "makes most" in sentence for sentence in sentences)
    assert any(sentence.startswith("c is to blame") for sentence in sentences)


def test_nobody_is_blamed_where_the_sequences_do_not_bound_the_part() -> None:
    # One sequence of twenty carries nearly all of it, and all of it is a's; each interval in nats lies above 0.
    single, rest = [100.0, *[0.1] * 20], [0.1] * 21
    sums = {"": [0.0] * 21, "a": single, "b": rest, "ab": [a + b for a, b in zip(single, rest, strict=True)]}

    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome]:
        return {c: outcome(sum(sums[key]) / 21, sums=sums[key]) for c in mixtures for key in ["".join(sorted(c))]}

    shares = waterfall(Memo(("a", "b"), evaluate), Group("all", ("a", "b")), no_bounds)
    assert [row.interval[0] > 0 for row in shares.shares] == [True, True]
    assert share_reading(shares, None, [], None, "bf16") == [
        "Not decided with these sequences: the shares of a and b may be 0; about 59 such sequences are needed."
    ]


def test_an_interaction_too_small_to_tell() -> None:
    game = table(a=0.5, b=0.5, ab=1.001)
    pairs = interactions(memo_of(("a", "b"), game.__getitem__), ["a", "b"], no_bounds)
    words = share_reading(shared(game), None, pairs, None, "bf16")
    assert not any("interact" in sentence for sentence in words)


def test_a_search_within_a_budget_says_so() -> None:
    players = tuple("abcdef")
    fixes = fix_sets(memo_of(players, lambda on: float(len(on))), 1.5, budget=12)
    assert not fixes.complete
    words = fix_reading(fixes, may_stay(fixes), costs=False)
    assert words[0].startswith("Smallest fix found under the gate 1.5: restore "), "a smaller one was not looked for"
    assert fixes.exhaustive == 0
    assert any(sentence.startswith("Fixes were searched only in part (") for sentence in words)
    sure = fix_sets(memo_of(players, lambda on: float("a" in on)), 0.5, budget=12)
    assert fix_reading(sure, may_stay(sure), costs=False)[0] == (
        "Smallest fix under the gate 0.5: restore a. Nothing of the difference is left then."
    )
