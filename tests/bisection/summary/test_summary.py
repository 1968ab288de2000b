"""The seven lines: what they say in each situation, and that they fit a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from moeparity.bisection.divergence.report import Choice, Root
from moeparity.bisection.floor.report import Floor, FloorTrial
from moeparity.bisection.nonfinite.report import FirstNonfinite, Nonfinite
from moeparity.bisection.record.report import LogprobRecord, Record
from moeparity.bisection.shares.report import Attribution, FixSetRow, ShareRow, Shares
from moeparity.bisection.summary.blame import blame, to_set
from moeparity.bisection.summary.report import Summary
from moeparity.bisection.summary.text import seven_lines
from moeparity.bisection.summary.words import floor, recorded, starts, sure
from moeparity.bisection.toggles.report import Offset, ToggleResult, TrialResult
from moeparity.bisection.verdict.report import Metrics
from moeparity.metrics.verdict import Verdict
from tests.bisection.reports import REPORT, fill

FLAG = 'attn_implementation="eager"'
BARE = "1 more without a flag"


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
            "2 choices, interchangeable: each alone makes 84-99% (noise, saturated)",
            f"none alone surely lowers it; all 2, for equal bits: {FLAG} on the candidate; {BARE}",
        ),
        (
            [toggle("a", 0.9, 0.2, restored_change_high=-0.5), toggle("b", 0.1, 0.9)],
            None,
            "a: restoring it alone removes 80%",
            "restore a (no flag known), which leaves 20%",
        ),
        # Large by what was measured, but not surely: nothing is called interchangeable.
        (
            [toggle("a", 0.99, 1.1), toggle("b", 0.84, 1.0)],
            None,
            "not decided with these sequences: most is b, 84% alone",
            "none alone surely lowers it; all 2, for equal bits: restore a and b (no flag known)",
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
            "none alone surely lowers it; all 2, for equal bits: restore a and b (no flag known)",
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
    assert to_set(hidden, None, 1.0).startswith("none alone surely lowers it; all 2, for equal bits: restore a and b")
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


def test_nothing_is_shared_of_nan() -> None:
    nan, toggles = float("nan"), [toggle("a", float("nan"), 0.1), toggle("b", 0.1, float("nan"))]
    where = fill(Nonfinite, made_by=("a",), ended_by=("a",))
    assert blame(toggles, None, nan, nonfinite=where) == "no shares of what is not finite; alone a makes it"
    assert blame(toggles, None, nan) == "no shares of NaN"
    assert to_set(toggles, None, nan, nonfinite=where) == "restore a (no flag known), which ends what is not finite"


def test_a_pair_that_offsets_and_a_pass() -> None:
    toggles = [toggle("a", 654.0, 600.0), toggle("b", 600.0, 654.0)]
    pair = fill(Offset, first="a", second="b")
    assert blame(toggles, None, 1e-4, offsets=(pair,)) == "a and b offset each other: each hides the other"
    assert to_set(toggles, None, 1e-4, passes=True) == "nothing"


def test_of_many_a_few_are_named() -> None:
    many = [toggle(name, 0.1, 1.1) for name in "abcd"]
    assert (
        to_set(many, None, 1.0)
        == "none alone surely lowers it; all 4, for equal bits: restore a, b and 2 more (no flag known)"
    )
    alike = shares(a="saturated", b="saturated")
    assert blame(many, alike, 1.0) == "2 choices, interchangeable (noise, saturated): shares name nobody"


def test_a_fix_that_was_run_is_what_to_set() -> None:
    toggles = [toggle("a", 0.9, 0.2, candidate_changed_by=FLAG), toggle("b", 0.1, 0.9)]
    fixed = replace(shares(a="culprit"), fixes=(fill(FixSetRow, toggles=("a",), exact=False),))
    assert to_set(toggles, fixed, 1.0) == f"{FLAG} on the candidate"
    undecided = replace(shares(a="undecided"), shares=fill(Shares, rows=(fill(ShareRow, role="undecided", needed=92),)))
    assert blame(toggles, undecided, 1.0) == "not decided with these sequences: about 92 such are needed"
    assert blame(toggles, None, 0.0) == "2 choices act, and no scored token's log-probability shows it"


def test_the_record() -> None:
    assert recorded(REPORT.record) == "none given: this compares two simulations"
    logprobs = fill(LogprobRecord, mean_abs_delta=1.18, floor=5.9e-05, from_position=1, tokens=2016)
    contradicted = fill(Record, status="not reproduced", side="candidate", logprobs=logprobs)
    assert recorded(contradicted) == "not reproduced: mean |delta| 1.2, floor 5.9e-05, from position 1 on"
    assert recorded(replace(contradicted, status="reproduced")).startswith("reproduced: mean |delta| 1.18 nats")


def test_where_it_starts() -> None:
    choice = fill(Choice, reference="eager", candidate="sdpa", reference_evidence="verified", candidate_evidence="read")
    root = fill(Root, node="layers[0].attention.attend", choices=(choice, choice))
    metrics = fill(Metrics)
    assert starts([], None, metrics) == "nowhere: no node gives other bits on equal inputs"
    assert starts([root], None, metrics) == (
        "layers[0].attention.attend: eager | sdpa (verified | read), and 1 choice more"
    )
    place = fill(FirstNonfinite, side="candidate", node="layers[1].moe.experts", nan=4, sequence=3, position=7)
    nan = fill(Nonfinite, first=(place,))
    assert starts([root], nan, replace(metrics, nonfinite_tokens=3)) == (
        "NaN at layers[1].moe.experts, sequence 3, position 7"
    )


def test_floor_and_how_sure() -> None:
    judged = fill(Verdict, below=1e-4)
    trial = fill(FloorTrial, name="orders drawn with seed 1")
    moved = fill(Floor, trials=(trial,), largest=3.49e-4)
    assert floor(moved, judged) == ("0.00035, reference against itself reordered: this gate asks for bits")
    assert floor(replace(moved, largest=1e-5), judged) == "1e-05, reference against itself reordered"
    assert floor(replace(moved, bit_identical=True), judged) == "none: the reference has the same bits in 1 other way"
    assert floor(replace(moved, largest=0.0), judged).startswith("0, though bits differ")
    assert floor(fill(Floor), judged).startswith("none: one sequence")
    assert floor(None, judged) == "not measured (`floor: false`)"
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
        verdict="k3 0.00027 [0.00021, 0.00037] nats per token, gate 0.0001",
        record="none given: this compares two simulations",
        starts="layers[0].attention.attend: eager | sdpa (verified | verified)",
        blame="4 choices, interchangeable: each alone makes 84-99% (noise, saturated)",
        to_set="nothing",
        floor="not measured (`floor: false`)",
        sure="values 4 verified; 32 sequences, 2,016 tokens",
    )
    stream = io.StringIO()
    Console(file=stream, width=80).print(seven_lines(replace(REPORT, summary=summary)))
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert lines == [
        "FAIL    k3 0.00027 [0.00021, 0.00037] nats per token, gate 0.0001",
        "record  none given: this compares two simulations",
        "starts  layers[0].attention.attend: eager | sdpa (verified | verified)",
        "blame   4 choices, interchangeable: each alone makes 84-99% (noise, saturated)",
        "to set  nothing",
        "floor   not measured (`floor: false`)",
        "sure    values 4 verified; 32 sequences, 2,016 tokens",
    ]
