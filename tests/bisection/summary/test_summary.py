"""The seven lines: what they say in each situation, and that they fit a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from moeparity.bisection.blame import show as words
from moeparity.bisection.blame.measure import blame_of
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.shares.data import Attribution, FixSetRow, ShareRow, Shares
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.summary.show import show, sure
from moeparity.bisection.toggles.data import Offset, Toggled, ToggleResult, TrialResult
from tests.bisection.reports import REPORT, fill
from tests.printed import printed

FLAG = 'attn_implementation="eager"'


def toggle(name: str, alone: float, restored: float, *, idle: bool = False, **fields: object) -> ToggleResult:
    return fill(
        ToggleResult,
        name=name,
        parent=None,
        kind="rounding",
        alone=fill(TrialResult, kl=alone, changed_nodes=3),
        restored=fill(TrialResult, kl=restored, changed_nodes=3),
        reference_evidence="verified",
        candidate_evidence="read",
        legal=True,
        had_no_effect=idle,
        **fields,
    )


def blame(
    toggles: Sequence[ToggleResult],
    attribution: Attribution | None,
    total: float,
    offsets: tuple[Offset, ...] = (),
    nonfinite: Nonfinite | None = None,
) -> str:
    """Who makes it, in words."""
    toggled = fill(Toggled, toggles=tuple(toggles), offsets=offsets)
    return words.who(blame_of(toggled, total, attribution, nonfinite))


def to_set(
    toggles: Sequence[ToggleResult],
    attribution: Attribution | None,
    total: float,
    *,
    passes: bool = False,
    nonfinite: Nonfinite | None = None,
) -> str:
    """What to set, in words."""
    blame = blame_of(fill(Toggled, toggles=tuple(toggles)), total, attribution, nonfinite)
    return words.to_set(blame, toggles, passes=passes)


def shares(**roles: str) -> Attribution:
    rows = tuple(
        fill(ShareRow, name=name, role=role, of_whole=0.62, of_whole_low=0.18, of_whole_high=1.05, needed=None)
        for name, role in roles.items()
    )
    return fill(Attribution, shares=fill(Shares, total=1.0, rows=rows))


@pytest.mark.parametrize(
    ("toggles", "attribution", "who", "setting"),
    [
        ([], None, "nobody: no choice changes a bit", "nothing"),
        ([toggle("a", 1.0, 1.0, idle=True)], None, "nobody: no choice changes a bit", "nothing"),
        (
            [toggle("a", 1.0, 0.0, restores_all=True, candidate_changed_by=FLAG)],
            None,
            "a makes all of it",
            f"{FLAG} on the candidate, for equal bits",
        ),
        # Shares of few sequences decide nothing, and bits do.
        (
            [toggle("a", 1.0, 0.0, restores_all=True), toggle("b", 0.0, 1.0, idle=True)],
            shares(a="undecided"),
            "a makes all of it",
            "restore a (no flag known), for equal bits",
        ),
        # What acts alone and leaves something shares it with choices that only act together.
        (
            [toggle("a", 0.6, 0.4, restored_change_high=-0.5), toggle("b", 0.0, 1.0, idle=True)],
            None,
            "a: restoring it alone removes 60%",
            "restore a (no flag known), which leaves 40%",
        ),
        (
            [toggle("a", 0.99, 1.1, large=True, candidate_changed_by=FLAG), toggle("b", 0.84, 1.0, large=True)],
            None,
            "a and b, interchangeable: each alone makes 84-99% (noise, saturated)",
            (
                f"none alone surely lowers it; all together, for equal bits: {FLAG} (a) on the candidate; "
                "without a flag: b"
            ),
        ),
        (
            [toggle("a", 0.9, 0.2, restored_change_high=-0.5), toggle("b", 0.1, 0.9)],
            None,
            "a: restoring it alone removes 80%",
            "restore a (no flag known), which leaves 20%",
        ),
        # Large by what was measured, but not surely: nothing is called interchangeable, and what makes most is told.
        (
            [toggle("a", 0.99, 1.1), toggle("b", 0.84, 1.0)],
            None,
            "not decided with these sequences: most is a, 99% alone",
            "none alone surely lowers it; all together, for equal bits: restore a and b (no flag known)",
        ),
        # A bug is never interchangeable with a rounding.
        (
            [
                toggle("a", 0.99, 1.1, large=True),
                replace(toggle("b", 0.84, 0.9, large=True, restored_change_high=-0.1), legal=False),
            ],
            None,
            "b: restoring it alone removes 10%",
            "restore b (no flag known), which leaves 90%",
        ),
        (
            [toggle("a", 0.9, 0.2), toggle("b", 0.1, 0.9)],
            shares(a="culprit", b="contributes"),
            "a 62% (18% to 105%)",
            "none alone surely lowers it; all together, for equal bits: restore a and b (no flag known)",
        ),
    ],
)
def test_blame_and_what_to_set(
    toggles: list[ToggleResult], attribution: Attribution | None, who: str, setting: str
) -> None:
    assert blame(toggles, attribution, 1.0) == who
    assert to_set(toggles, attribution, 1.0) == setting


def test_what_hides_each_other_is_blamed_and_set_together() -> None:
    """Both act, and restoring either changes no bit: nothing of it is "nobody", and neither alone is enough."""
    hidden = [toggle("a", 1.0, 1.0, masked=True), toggle("b", 1.0, 1.0, masked=True)]
    assert blame(hidden, None, 1.0) == "not decided with these sequences: most is a, 100% alone"
    assert to_set(hidden, None, 1.0).startswith(
        "none alone surely lowers it; all together, for equal bits: restore a and b"
    )
    # What the masked one would do where the other is restored is not known: it does not make all of it.
    assert blame([toggle("a", 1.0, 1.0), hidden[1]], None, 1.0) != "a makes all of it"


def test_a_flag_that_only_the_reference_has_is_said() -> None:
    gate = toggle("a", 0.9, 0.2, restored_change_high=-0.5, reference_changed_by="leaving out --moe-router-dtype fp32")
    assert to_set([gate], None, 1.0) == (
        "restore a (the candidate has no flag; the reference: leaving out --moe-router-dtype fp32), which leaves 20%"
    )
    # A flag of one choice is none of both.
    toggles = [toggle("a", 0.9, 0.9, reference_changed_by=FLAG), toggle("b", 0.1, 0.9)]
    assert to_set(toggles, None, 1.0).endswith("for equal bits: restore a and b (the candidate has no flag)")


def test_of_trials_that_were_not_run_nothing_is_said() -> None:
    refused = replace(toggle("a", 1.0, 1.0), alone=None, restored=None)
    assert blame([refused, toggle("b", 0.84, 1.2)], None, 1.0) == (
        "not decided with these sequences: most is b, 84% alone"
    )
    assert blame([refused, replace(refused, name="b")], None, 1.0) == "not decided with these sequences"
    assert to_set([refused, replace(refused, name="b")], None, 1.0) == (
        "none alone surely lowers it; all together, for equal bits: restore a and b (no flag known)"
    )


def test_nothing_is_shared_of_nan() -> None:
    nan, toggles = float("nan"), [toggle("a", float("nan"), 0.1), toggle("b", 0.1, float("nan"))]
    where = fill(Nonfinite, made_by=("a",), ended_by=("a",))
    assert blame(toggles, None, nan, nonfinite=where) == (
        "a alone makes NaN or infinities, of which no shares are taken"
    )
    assert blame(toggles, None, nan) == "not known: no shares are taken of NaN or infinities"
    assert to_set(toggles, None, nan, nonfinite=where) == "restore a (no flag known), which leaves no NaN or infinity"


def test_a_pair_that_offsets_and_a_pass() -> None:
    toggles = [toggle("a", 654.0, 600.0), toggle("b", 600.0, 654.0)]
    pair = fill(Offset, first="a", second="b")
    assert blame(toggles, None, 1e-4, offsets=(pair,)) == "a and b offset each other: each hides the other"
    assert to_set(toggles, None, 1e-4, passes=True) == "nothing"


def test_of_many_a_few_are_named() -> None:
    many = [toggle(name, 0.1 + 0.01 * at, 1.1) for at, name in enumerate("abcdefgh")]
    assert to_set(many, None, 1.0) == (
        "none alone surely lowers it; all together, for equal bits: restore h, g, f, e, d, c and 2 more "
        "(--section toggles) (no flag known)"
    )
    alike = shares(a="saturated", b="saturated")
    words = "a and b, interchangeable (noise, saturated): shares do not tell them apart"
    assert blame(many, alike, 1.0) == words
    # Also shares that the sequences do not bound.
    rows = tuple(replace(row, of_whole_low=-math.inf, of_whole_high=math.inf) for row in alike.shares.rows)
    unbounded = replace(alike, shares=replace(alike.shares, rows=rows))
    assert blame(many, unbounded, 1.0) == words


def test_of_one_flag_all_that_it_takes_back_is_named() -> None:
    toggles = [toggle(name, 0.9, 1.0, large=True, candidate_changed_by=FLAG) for name in "ab"] + [toggle("c", 0.8, 1.0)]
    assert to_set(toggles, None, 1.0) == (
        f"none alone surely lowers it; all together, for equal bits: {FLAG} (a, b) on the candidate; without a flag: c"
    )
    many = [toggle(name, 0.9, 1.0, candidate_changed_by=FLAG) for name in "abcdefgh"]
    assert to_set(many, None, 1.0).endswith(f"for equal bits: {FLAG} on the candidate")


def test_a_fix_that_was_run_is_what_to_set() -> None:
    toggles = [toggle("a", 0.9, 0.2, candidate_changed_by=FLAG), toggle("b", 0.1, 0.9)]
    fixed = replace(shares(a="culprit"), fixes=(fill(FixSetRow, toggles=("a",), exact=False),))
    assert to_set(toggles, fixed, 1.0) == f"{FLAG} on the candidate"
    undecided = replace(
        shares(a="undecided"), shares=fill(Shares, rows=(fill(ShareRow, name="a", role="undecided", needed=92),))
    )
    assert blame(toggles, undecided, 1.0) == "not decided with these sequences: about 92 such sequences are needed"
    assert blame(toggles, None, 0.0) == "a and b act, and no scored token's log-probability shows it"


def test_how_sure() -> None:
    decisive = toggle("a", 1.0, 0.0)
    assert sure([decisive], 32, 2016, synthetic=False) == ("values 1 verified, 1 read; 32 sequences, 2,016 tokens")
    unsure = replace(decisive, candidate_evidence="unknown")
    assert sure([unsure], 1, 5, synthetic=True) == (
        "values 1 unknown, 1 verified; 1 sequence, 5 tokens; random weights"
    )
    by_ptx = replace(decisive, candidate_evidence="verified: ptx")
    assert sure([by_ptx], 2, 9, synthetic=False).startswith("values 1 verified, 1 verified: ptx;")
    verified = replace(decisive, candidate_evidence="verified")
    assert sure([verified], 2, 9, synthetic=False).startswith("values 2 verified;")
    assert sure([], 2, 9, synthetic=False).startswith("nothing differs that acts;")


def test_seven_lines_at_80_columns() -> None:
    summary = Summary(
        verdict="k3 (KL estimate, nats per token) 0.00027 [0.00021, 0.00037]",
        record="none given: this compares two simulations",
        starts="layers[0].attention.attend:implementation: eager | sdpa (verified | verified)",
        blame="op combine:accumulate and layers[*].moe.gate:output, interchangeable: each alone makes 84-99% "
        "(noise, saturated)",
        to_set="nothing",
        floor="not measured (`floor: false`)",
        sure="values 4 verified; 32 sequences, 2,016 tokens",
    )
    shown = [line.rstrip() for line in printed(show(replace(REPORT, summary=summary)), 80).splitlines()]
    lines, closing = shown[:9], shown[9:]
    assert closing == ["", *lines]
    assert lines == [
        "FAIL    k3 (KL estimate, nats per token) 0.00027 [0.00021, 0.00037]",
        "record  none given: this compares two simulations",
        "starts  layers[0].attention.attend:implementation: eager | sdpa (verified |",
        "        verified)",
        "blame   op combine:accumulate and layers[*].moe.gate:output, interchangeable:",
        "        each alone makes 84-99% (noise, saturated)",
        "to set  nothing",
        "floor   not measured (`floor: false`)",
        "sure    values 4 verified; 32 sequences, 2,016 tokens",
    ]
