"""Who is to blame, case by case: of bits, of shares, of trials; and what to restore."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest

from moeparity.search.blame import GONE_BELOW, Blame, BlameKind, Fix, Part, Suspect, blame, by_trials, seems_large
from moeparity.search.contrast import Interval
from moeparity.search.roles import Role

NAN, INF = math.nan, math.inf
NO_BOUNDS: Interval = (-INF, INF)
SURELY_LESS: Interval = (-0.9, -0.5)
SURELY_MORE: Interval = (0.1, 0.2)
BY_SHARES = {Role.CONTRIBUTES, Role.HELPS, Role.NEGLIGIBLE}


def suspect(name: str, alone: float | None, restored: float | None, **fields: Any) -> Suspect:
    return Suspect(**{"name": name, "role": Role.UNDECIDED, "alone": alone, "restored": restored} | fields)


def lowering(name: str, alone: float | None, restored: float | None, **fields: Any) -> Suspect:
    return suspect(name, alone, restored, role=Role.CULPRIT, lowers=True, **fields)


def saturated(name: str, alone: float, restored: float) -> Suspect:
    return suspect(name, alone, restored, role=Role.SATURATED)


def shared(name: str, role: Role, part: float, **fields: Any) -> Suspect:
    share = Part(name=name, part=part, low=part - 0.1, high=part + 0.1)
    return suspect(name, 0.9, 0.1, role=role, share=share, **fields)


IDLE = suspect("idle", 1.0, 1.0, role=Role.NO_EFFECT)
MASKED = suspect("masked", 1.0, 1.0, role=Role.MASKED)


def outcome(answer: Blame) -> tuple[BlameKind, tuple[str, ...], str]:
    return answer.kind, answer.named, answer.confidence


# Who.


@pytest.mark.parametrize("total", [0.0, 1.0, NAN, INF])
@pytest.mark.parametrize("suspects", [[], [IDLE], [IDLE, replace(IDLE, name="other")]])
def test_where_nothing_acts_nobody_is_to_blame_and_nothing_is_to_be_restored(
    suspects: list[Suspect], total: float
) -> None:
    answer = blame(suspects, total=total)
    assert outcome(answer) == ("nobody", (), "bits")
    assert answer.fix is None
    assert answer.ruled_out == tuple(s.name for s in suspects)


def test_what_reaches_no_scored_token_is_named_the_greatest_first() -> None:
    answer = blame([suspect("a", 0.1, None), suspect("b", 0.4, None), IDLE], total=0.0)
    assert outcome(answer) == ("unseen", ("b", "a"), "bits")
    assert (answer.parts, answer.ruled_out) == ((), ("idle",))


@pytest.mark.parametrize("total", [NAN, INF])
def test_of_what_is_not_finite_its_makers_are_named_and_no_share_of_it(total: float) -> None:
    suspects = [lowering("a", None, None, restores_all=False), shared("b", Role.CULPRIT, 0.6)]
    answer = blame(suspects, total=total, shared=True, makers=("b",), enders=("a",))
    assert outcome(answer) == ("not finite", ("b",), "bits")
    assert answer.parts == ()
    assert outcome(blame(suspects, total=total, shared=True)) == ("not finite", (), "open")


def test_a_pair_that_hides_each_other_is_named_however_small_the_whole_and_before_shares() -> None:
    suspects = [shared("a", Role.CULPRIT, 0.9), suspect("b", 600.0, 654.0), suspect("c", 0.0, 0.0)]
    for total in (0.0, 1e-4):
        answer = blame(suspects, total=total, shared=True, offsets=[("b", "c"), ("a", "b")])
        assert outcome(answer) == ("offset", ("b", "c"), "sure")
    assert blame(suspects, total=NAN, offsets=[("b", "c")]).kind == "not finite"


def test_the_only_one_that_acts_and_restores_all_bits_makes_all_of_it_whatever_its_share() -> None:
    only = shared("a", Role.UNDECIDED, 0.4, restores_all=True)
    answer = blame([IDLE, only], total=1.0, shared=True)
    assert outcome(answer) == ("one", ("a",), "bits")
    assert [(part.name, part.part) for part in answer.parts] == [("a", 1.0)]
    # Beside another that acts, or without all bits, that is not known.
    assert blame([only, MASKED], total=1.0, shared=True).kind == "undecided"
    assert blame([replace(only, restores_all=False)], total=1.0, shared=True).kind == "undecided"


@pytest.mark.parametrize(
    ("role", "kind", "confidence"),
    [
        (Role.CULPRIT, "culprits", "sure"),
        (Role.SATURATED, "interchangeable", "sure"),
        (Role.CONTRIBUTES, "contributes", "open"),
    ],
)
def test_shares_name_those_of_the_first_role_that_any_has(role: Role, kind: BlameKind, confidence: str) -> None:
    after = [Role.CULPRIT, Role.SATURATED, Role.CONTRIBUTES, Role.UNDECIDED, Role.HELPS, Role.OFFSETS, Role.REFUSED]
    others = [shared(f"other {r}", r, 0.9) for r in after[after.index(role) + 1 :]]
    answer = blame([*others, shared("a", role, 0.3), shared("b", role, 0.5)], total=1.0, shared=True)
    assert outcome(answer) == (kind, ("a", "b"), confidence)
    assert answer.parts == (
        Part(name="a", part=0.3, low=0.3 - 0.1, high=0.3 + 0.1),
        Part(name="b", part=0.5, low=0.5 - 0.1, high=0.5 + 0.1),
    )


@pytest.mark.parametrize("role", [Role.UNDECIDED, Role.HELPS, Role.NEGLIGIBLE, Role.OFFSETS, Role.REFUSED, Role.MASKED])
def test_other_roles_name_nobody_and_say_how_many_sequences_would(role: Role) -> None:
    answer = blame([shared("a", role, 0.9), shared("b", role, 0.1, needed=92)], total=1.0, shared=True)
    assert outcome(answer) == ("undecided", (), "open")
    assert "92" in answer.would_decide
    assert blame([shared("a", role, 0.9), shared("b", role, 0.1)], total=1.0, shared=True).would_decide == ""


def test_shares_come_before_trials() -> None:
    """By its trials `a` removes most; by shares it is `b` that makes it."""
    suspects = [shared("a", Role.UNDECIDED, 0.3, lowers=True), shared("b", Role.CULPRIT, 0.6)]
    assert blame(suspects, total=1.0, shared=True).named == ("b",)
    assert outcome(blame(suspects, total=1.0)) == ("most", ("a",), "sure")
    # Also where they decide nothing.
    assert blame(suspects[:1], total=1.0, shared=True).kind == "undecided"


def test_those_that_stand_in_for_each_other_are_named_the_greatest_first_with_what_each_makes_alone() -> None:
    suspects = [saturated("a", 0.84, 1.0), lowering("c", 0.1, 0.05), saturated("b", 0.99, 1.1)]
    answer = blame(suspects, total=1.0)
    assert outcome(answer) == ("interchangeable", ("b", "a"), "sure")
    assert [(part.name, part.part) for part in answer.parts] == [("b", 0.99), ("a", 0.84)]
    assert all(math.isnan(part.low) and math.isnan(part.high) for part in answer.parts)


def test_one_alone_stands_in_for_nobody() -> None:
    assert blame([saturated("a", 0.84, 1.0), suspect("b", 0.1, 1.2)], total=1.0).kind == "undecided"


def test_of_several_that_each_remove_as_good_as_all_any_will_do() -> None:
    gone, hardly = GONE_BELOW / 2, GONE_BELOW * 2
    answer = blame([lowering("a", 0.2, 0.0), lowering("b", 0.9, gone), suspect("c", 0.1, gone)], total=1.0)
    assert outcome(answer) == ("any", ("b", "a"), "sure")
    assert [(part.name, part.part) for part in answer.parts] == [("b", 1 - gone), ("a", 1.0)]
    # One, of which the other leaves something, is the one that removes most.
    answer = blame([lowering("a", 0.2, hardly), lowering("b", 0.9, gone)], total=1.0)
    assert outcome(answer) == ("most", ("b",), "sure")
    assert [(part.name, part.part) for part in answer.parts] == [("b", 1 - gone)]


def test_the_one_that_leaves_least_is_named_only_if_that_is_sure() -> None:
    suspects = [suspect("a", 0.9, 0.2), lowering("b", 0.8, 0.4)]
    assert outcome(blame([lowering("a", 0.9, 0.2), suspects[1]], total=1.0)) == ("most", ("a",), "sure")
    answer = blame(suspects, total=1.0)
    assert outcome(answer) == ("undecided", (), "open")
    assert (answer.alternatives, answer.would_decide) == (("a",), "more sequences")
    assert [(part.name, part.part) for part in answer.parts] == [("a", 0.9)]


# What was not run, and what is not finite, says nothing.


@pytest.mark.parametrize("unknown", [None, NAN, INF])
def test_a_trial_that_has_no_number_is_never_most_nor_first(unknown: float | None) -> None:
    silent = suspect("silent", unknown, unknown, role=Role.REFUSED)
    for suspects in ([silent, suspect("a", 0.8, 1.2)], [suspect("a", 0.8, 1.2), silent]):
        answer = blame(suspects, total=1.0)
        assert (answer.kind, answer.alternatives) == ("undecided", ("a",))
        assert [(part.name, part.part) for part in answer.parts] == [("a", 0.8)]
    for suspects in ([silent, lowering("a", 0.8, 0.2)], [lowering("a", 0.8, 0.2), silent]):
        answer = blame(suspects, total=1.0)
        assert outcome(answer) == ("most", ("a",), "sure")
        assert answer.fix == Fix(toggles=("a",), leaves=0.2)
    others = [suspect("a", 0.1, 1.0), suspect("b", 0.9, 1.0)]
    answer = blame([others[0], silent, others[1]], total=1.0)
    assert answer.fix == Fix(toggles=("b", "a", "silent"), tried=False, exact=True)


@pytest.mark.parametrize("unknown", [None, NAN, INF])
def test_where_no_restored_trial_has_a_number_the_greatest_alone_is_most(unknown: float | None) -> None:
    answer = blame([suspect("a", 0.1, unknown), suspect("b", 0.9, unknown), suspect("c", None, unknown)], total=1.0)
    assert (answer.kind, answer.alternatives) == ("undecided", ("b",))
    assert [(part.name, part.part) for part in answer.parts] == [("b", 0.9)]
    nothing = blame([suspect("a", unknown, unknown), suspect("b", None, unknown)], total=1.0)
    assert outcome(nothing) == ("undecided", (), "open")
    assert (nothing.alternatives, nothing.parts, nothing.would_decide) == ((), (), "")


def test_every_part_that_is_said_is_a_number() -> None:
    trials = (None, NAN, INF, 0.0, 0.5, 1.2)
    for alone in trials:
        for restored in trials:
            for role in Role:
                for lowers in (False, True):
                    odd = suspect("odd", alone, restored, role=role, lowers=lowers)
                    answer = blame([odd, replace(odd, name="twin"), suspect("a", 0.4, 0.6)], total=1.0)
                    assert all(math.isfinite(part.part) for part in answer.parts), (odd, answer)
                    assert answer.fix is None or answer.fix.leaves is None or math.isfinite(answer.fix.leaves), odd


# What to restore.


def test_a_fix_that_a_search_found_comes_first_and_the_empty_one_is_none() -> None:
    suspects = [lowering("a", 0.9, 0.2), suspect("b", 0.1, 0.0, restores_all=True)]
    pair = Fix(toggles=("a", "b"), exact=True)
    assert blame(suspects, total=1.0, searched_fix=pair).fix == pair
    assert blame(suspects, total=1.0, searched_fix=Fix(toggles=())).fix == Fix(toggles=("b",), exact=True)
    assert blame([IDLE], total=1.0, searched_fix=pair).fix is None


def test_bits_come_before_the_end_of_what_is_not_finite_and_that_before_less() -> None:
    exact = suspect("a", 0.1, 0.9, restores_all=True)
    ends = suspect("b", None, None)
    less, least = lowering("c", 0.8, 0.4), lowering("d", 0.8, 0.3)
    finite = [less, least, suspect("e", 0.1, 0.1)]
    assert blame([*finite, ends, exact], total=NAN, enders=("b",)).fix == Fix(toggles=("a",), exact=True)
    assert blame([*finite, ends], total=NAN, enders=("x", "b")).fix == Fix(toggles=("b",), ends=True)
    assert blame([*finite, ends], total=1.0).fix == Fix(toggles=("d",), leaves=0.3)


def test_where_none_surely_lowers_it_all_that_acts_is_to_restore_and_was_not_tried() -> None:
    answer = blame([suspect("a", 0.1, 1.1), MASKED, suspect("b", 0.9, 1.0), IDLE], total=1.0)
    assert answer.fix == Fix(toggles=("masked", "b", "a"), tried=False, exact=True)


# Who is not to blame.


def test_what_changes_no_bit_or_shows_nowhere_is_ruled_out_unless_it_is_named() -> None:
    answer = blame([IDLE, MASKED, lowering("a", 0.9, 0.1)], total=1.0)
    assert (answer.named, answer.ruled_out) == (("a",), ("idle", "masked"))
    answer = blame([IDLE, MASKED, suspect("a", 0.9, 0.1)], total=1.0, offsets=[("masked", "a")])
    assert (answer.named, answer.ruled_out) == (("masked", "a"), ("idle",))


# A role by two trials.


@pytest.mark.parametrize(
    ("role", "facts"),
    [
        (Role.NO_EFFECT, {"acts": False, "masked": True, "parts": (0.9, 0.9), "large": True}),
        (Role.MASKED, {"masked": True, "parts": (0.9, 1.0), "large": True}),
        (Role.SATURATED, {"parts": (0.5, 0.5), "large": True}),
        (Role.SATURATED, {"parts": (0.9, 0.9), "large": True, "change": SURELY_LESS}),
        # As large by what was measured, but not surely.
        (Role.UNDECIDED, {"parts": (0.9, 0.9), "change": SURELY_LESS}),
        # What computes another model is interchangeable with nothing.
        (Role.CULPRIT, {"parts": (0.9, 0.9), "large": True, "legal": False, "change": SURELY_LESS}),
        (Role.UNDECIDED, {"parts": (0.9, 0.9), "large": True, "legal": False}),
        (Role.CULPRIT, {"parts": (0.9, 0.4), "large": True, "change": SURELY_LESS}),
        (Role.OFFSETS, {"parts": (0.4, 0.9), "large": True, "change": SURELY_MORE}),
        (Role.UNDECIDED, {"parts": (0.4, 0.4), "change": (-0.1, 0.1)}),
        (Role.UNDECIDED, {"parts": (0.4, 0.4), "change": (-INF, -0.1)}),
        (Role.UNDECIDED, {"parts": (0.4, 0.4), "change": (0.1, INF)}),
        (Role.REFUSED, {"parts": (0.9, None)}),
        (Role.REFUSED, {"parts": (None, None), "large": True}),
        # Restoring it was run, and says so.
        (Role.CULPRIT, {"parts": (None, 0.1), "change": SURELY_LESS}),
    ],
)
def test_the_role_by_two_trials(role: Role, facts: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"acts": True, "masked": False, "legal": True, "large": False, "change": NO_BOUNDS}
    assert by_trials(**usual | facts) is role


@pytest.mark.parametrize(
    "parts", [(NAN, 0.9), (0.9, NAN), (NAN, NAN), (None, 0.9), (0.9, None), (0.49, 0.9), (0.9, 0.49)]
)
def test_what_is_no_number_is_not_large(parts: tuple[float | None, float | None]) -> None:
    assert not seems_large(parts)
    role = by_trials(acts=True, masked=False, legal=True, large=True, parts=parts, change=(NAN, NAN))
    assert role in {Role.UNDECIDED, Role.REFUSED}
    assert seems_large((0.5, 0.5))


def test_trials_give_no_role_that_only_shares_do() -> None:
    parts = (None, NAN, 0.1, 0.9)
    changes = (NO_BOUNDS, SURELY_LESS, SURELY_MORE, (NAN, NAN))
    flags = (False, True)
    roles = {
        by_trials(acts=acts, masked=masked, legal=legal, large=large, parts=(first, second), change=change)
        for acts in flags
        for masked in flags
        for legal in flags
        for large in flags
        for first in parts
        for second in parts
        for change in changes
    }
    assert roles == set(Role) - BY_SHARES


def test_of_choices_every_kind_can_be_said() -> None:
    """The others are said of a record and of a trace, where choices decide nothing."""
    less = lowering("a", 0.9, 0.0)
    answers = [
        blame([], total=1.0),
        blame([less], total=0.0),
        blame([less], total=NAN),
        blame([less], total=1.0, offsets=[("a", "b")]),
        blame([replace(less, restores_all=True)], total=1.0),
        *(blame([shared("a", Role(role), 0.5)], total=1.0, shared=True) for role in ("culprit", "contributes")),
        blame([saturated("a", 0.9, 0.9), saturated("b", 0.9, 0.9)], total=1.0),
        blame([less, replace(less, name="b")], total=1.0),
        blame([less], total=1.0),
        blame([suspect("a", 0.9, 0.0)], total=1.0),
    ]
    assert {of.kind for of in answers} == set(get_args(BlameKind)) - {"record", "trace"}


def test_what_is_told_to_make_most_alone_does() -> None:
    """The one whose restoring leaves least may make nothing alone, and `most is a, 0% alone` says nothing."""
    answer = blame([suspect("a", 0.0, 0.6), suspect("b", 0.9, 0.8)], total=1.0)
    assert (answer.kind, answer.alternatives) == ("undecided", ("b",))
    assert answer.parts == (Part(name="b", part=0.9),)
