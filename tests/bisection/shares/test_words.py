"""Shares and fix sets in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeparity.bisection.shares.words import fix_reading, share_reading
from moeparity.search.fixes import Fixes, fix_sets, keep
from moeparity.search.interactions import interactions
from moeparity.search.judged_apart import judged_apart
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


def test_culprits_by_the_size_of_their_shares() -> None:
    assert speak(table(a=0.2, b=0.8, ab=1.0)).splitlines() == [
        "b is to blame for 80% of the KL (80% to 80% over sequences); restoring it alone lowers it by 80%.",
        "a is to blame for 20% of the KL (20% to 20% over sequences); restoring it alone lowers it by 20%.",
    ]


def test_what_is_interchangeable_and_only_at_the_floor_where_fp32_takes_it_away() -> None:
    game = table(a=0.9, b=0.8, ab=1.0)
    floor = speak(game, in_fp32=1e-9)
    assert floor.startswith("The difference is at the floor of bf16 rounding: a and b are interchangeable.")
    assert "What would help: fp32 on both sides leaves KL 1e-09 nats per token (1e-09 of it)" in floor
    for in_fp32 in (None, 0.5):
        assert speak(game, in_fp32=in_fp32).startswith("Saturated: a and b are interchangeable.")
    assert "What would help: fp32 on both sides leaves KL 0.5 nats per token (0.50 of it)" in speak(game, in_fp32=0.5)
    raised = speak(game, in_fp32=1.6)
    assert "fp32 on both sides would not help: it leaves KL 1.6 nats per token (1.60 of it)" in raised
    assert "What would help" not in raised
    assert "raises" not in floor
    assert "Restoring a alone even raises the KL." in speak(table(a=0.9, b=1.1, ab=1.0))


def test_interchangeable_choices_that_are_not_alike_without_flips() -> None:
    game = table(a=0.9, b=0.8, ab=1.0)
    alike = speak(game, shared(table(a=0.2, b=0.2, ab=0.4)))
    assert "one effect, and none of them is to blame more than another." in alike
    unlike = speak(game, shared(table(a=0.38, b=0.01, ab=0.39))).splitlines()
    assert unlike[0].endswith("their shares divide one effect.")
    assert unlike[1] == (
        "Without flips (expert ids forced) they are not alike: a makes 97% and b makes 3% of what is left."
    )


def test_what_is_no_legal_choice_is_told_apart() -> None:
    free = {frozenset(c): v for c, v in {"": 0.0, "a": 0.9, "b": 0.9, "e": 0.9}.items()}
    free |= {frozenset(c): v for c, v in {"ab": 0.95, "ae": 0.95, "be": 0.95, "abe": 1.0}.items()}
    forced = {c: 0.01 * len(c & {"a", "b"}) + 0.38 * ("e" in c) for c in free}
    natural, routed = (memo_of(("a", "b", "e"), game.__getitem__) for game in (free, forced))
    apart = judged_apart(frozenset("e"), natural, routed, no_bounds)
    chart, without = (
        waterfall(memo, Group("all", memo.players), no_bounds, apart=frozenset("e")) for memo in (natural, routed)
    )
    words = share_reading(chart, without, [], None, "bf16", apart)
    assert words[0].startswith("Saturated: a and b are interchangeable.")
    assert words[1] == (
        "e is no rounding but another function, judged apart: restoring it surely lowers the KL, to 95%."
    )
    assert words[2] == (
        "With the reference's expert ids forced, KL is 4.00e-01 with it; restoring it surely lowers the KL, to 5%."
    )
    wide = judged_apart(frozenset("e"), natural, routed, lambda *_: (-1.0, 1.0))
    unsure = share_reading(chart, without, [], None, "bf16", wide)
    assert unsure[1].endswith("with it restored 95% is left, which these sequences do not tell from all.")


def test_small_helpful_offsetting_and_undecided_toggles() -> None:
    assert "b contributes less than 10% of the KL." in speak(table(a=1.0, b=0.05, ab=1.05))
    assert "b helps: with the candidate's choice it is nearer to the reference." in speak(table(a=2.0, b=0.4, ab=1.0))
    assert "b changes the KL by less than 1%." in speak(table(a=1.01, b=0.01, ab=1.0))
    assert "Restoring b alone raises the KL: it undoes what others do." in speak(table(a=1.3, b=0.8, ab=1.0))
    players = ("a", "b")
    game = table(a=0.5, b=0.4, ab=1.0)
    wide = waterfall(memo_of(players, game.__getitem__), Group("all", players), lambda *_: (-1.0, 1.0))
    undecided = share_reading(wide, None, [], None, "bf16")
    assert undecided == [
        "Not decided with these sequences: the shares of a and b may be 0; about 25 to 32 such sequences are needed."
    ]


def test_the_strongest_pair_unless_all_stand_in_for_each_other() -> None:
    game = table(a=0.1, b=0.1, ab=1.0)
    pairs = interactions(memo_of(("a", "b"), game.__getitem__), ["a", "b"], no_bounds)
    words = share_reading(shared(game), None, pairs, None, "bf16")
    assert words[-1] == "a and b interact: together they cost 80% of the KL more than each alone, added up."
    unsure = interactions(memo_of(("a", "b"), game.__getitem__), ["a", "b"], lambda *_: (-1.0, 1.0))
    assert not any("interact" in sentence for sentence in share_reading(shared(game), None, unsure, None, "bf16"))
    full = table(a=0.9, b=0.8, ab=1.0)
    pairs = interactions(memo_of(("a", "b"), full.__getitem__), ["a", "b"], no_bounds)
    assert not any("interact" in sentence for sentence in share_reading(shared(full), None, pairs, None, "bf16"))


def test_forced_routes() -> None:
    forced = shared(table(a=0.3, b=0.1, ab=0.4))
    assert speak(table(a=0.2, b=0.8, ab=1.0), forced).splitlines()[-1] == (
        "With the reference's expert ids forced (routing replay), KL is 4.00e-01 (40%); of what is left without "
        "flips, a makes most: 75%."
    )
    gone = speak(table(a=0.2, b=0.8, ab=1.0), shared(table(a=0.0, b=0.0, ab=0.0)))
    assert gone.endswith("KL is 0.00e+00 (0%).")
    refused = speak(table(a=0.2, b=0.8, ab=1.0), shared(table(a=0.2, b=0.8, ab=None)))
    assert refused.endswith("Routes cannot be forced here, so what numerics alone do without flips is not known.")


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


def test_a_large_share_that_is_no_culprits() -> None:
    # Restoring b is not surely enough; its own share is.
    game = table(a=0.3, b=0.8, ab=1.0)

    def bounds(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
        return (-0.9, 0.1) if sum(sums) < 0 else no_bounds(sums, tokens)

    shares = waterfall(memo_of(("a", "b"), game.__getitem__), Group("all", ("a", "b")), bounds)
    words = share_reading(shares, None, [], None, "bf16")
    but = "but restoring it alone does not surely lower it; about 25 such sequences are needed."
    assert words == [
        f"a contributes 25% of the KL (25% to 25% over sequences), {but}",
        f"b contributes 75% of the KL (75% to 75% over sequences), {but}",
    ]


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


def test_smallest_fixes_and_what_may_stay() -> None:
    fixes = fixed(table(a=0.2, b=0.8, ab=1.0), 0.5)
    assert fix_reading(fixes, keep(fixes), costs=False) == [
        "Smallest fix under the gate 0.5: restore b.",
        "That is the only minimal fix there is.",
        "May stay on under the gate: a (the most that may).",
    ]
    assert fix_reading(fixes, keep(fixes, {"a": 3.0, "b": 1.5}), costs=True)[-1] == (
        "May stay on under the gate: a (restoring the others costs 1.5)."
    )


def test_several_smallest_fixes_and_the_last_resort() -> None:
    either = fixed(table(a=0.2, b=0.3, ab=1.0), 0.5)
    assert fix_reading(either, keep(either), costs=False)[:2] == [
        "Smallest fix under the gate 0.5: restore a; or b.",
        "All 2 minimal fixes were found.",
    ]
    fixes = fixed(table(a=0.8, b=0.9, ab=1.0), 0.5)
    words = fix_reading(fixes, keep(fixes), costs=False)
    assert words[0] == "Smallest fix under the gate 0.5: restore a and b. Nothing of the difference is left then."
    assert words[-1] == "Nothing may stay on under the gate."


def test_a_fix_that_restoring_more_undoes() -> None:
    fixes = fixed(table(a=0.2, b=0.9, c=0.9, ab=0.2, ac=0.9, bc=0.9, abc=1.0), 0.5)
    words = fix_reading(fixes, keep(fixes), costs=False)
    assert "Restoring more can undo it: it passes with c restored, and no longer with a restored as well." in words


def test_a_candidate_under_the_gate_and_one_that_nothing_fixes() -> None:
    passing = fixed(table(a=0.1, b=0.1, ab=0.2), 0.5)
    assert fix_reading(passing, keep(passing), costs=False) == [
        "The candidate is under the gate 0.5 as it is: nothing needs restoring."
    ]
    memo = memo_of(("a", "b"), table(a=0.1, b=0.9, ab=0.2).__getitem__)
    memo.ask([frozenset("a"), frozenset("b")])
    undoing = fix_sets(memo, 0.5)
    assert fix_reading(undoing, keep(undoing), costs=False) == [
        "The candidate is under the gate 0.5 as it is: nothing needs restoring. With a restored it no longer is."
    ]
    game = {**table(a=0.8, b=0.9, ab=1.0), frozenset(): None}
    never = fixed(game, 0.5)
    assert fix_reading(never, keep(never), costs=False) == [
        "No set of toggles that was run brings it under the gate 0.5, when restored."
    ]


def test_a_search_within_a_budget_says_so() -> None:
    players = tuple("abcdef")
    fixes = fix_sets(memo_of(players, lambda on: float(len(on))), 1.5, budget=12)
    assert not fixes.complete
    words = fix_reading(fixes, keep(fixes), costs=False)
    assert words[0].startswith("Smallest fix found under the gate 1.5: restore "), "a smaller one was not looked for"
    assert any(
        sentence.startswith(f"All fixes of up to {fixes.exhaustive} toggles were looked for") for sentence in words
    )
    sure = fix_sets(memo_of(players, lambda on: float("a" in on)), 0.5, budget=12)
    assert fix_reading(sure, keep(sure), costs=False)[0] == (
        "Smallest fix under the gate 0.5: restore a. Nothing of the difference is left then."
    )
