"""What the terminal shows of shares and fixes."""

from __future__ import annotations

import math
from dataclasses import replace

from moeparity.bisection.run.data import Cost
from moeparity.bisection.shares.data import (
    Attribution,
    FixSetRow,
    InteractionRow,
    PlacesRow,
    RestoredRow,
    ShareRow,
    Shares,
)
from moeparity.bisection.shares.show import place_words, search_cost, show, show_fixes
from tests.bisection.reports import REPORT, fill
from tests.printed import printed

A = fill(
    ShareRow,
    name="moe.gate:output",
    evidence="read | inferred",
    share=3e-4,
    of_whole=0.75,
    low=2e-4,
    high=4e-4,
    k3=2.5e-4,
    role="culprit",
)
B = fill(
    ShareRow,
    name="lm_head:output",
    evidence="verified",
    share=1e-4,
    of_whole=0.25,
    low=5e-5,
    high=2e-4,
    k3=None,
    role="contributes",
)
A = replace(A, evidence="read | inferred", alone=3.2e-4, restored=8e-5, of_whole_low=0.6, of_whole_high=0.85)
B = replace(B, evidence="verified", alone=1.2e-4, restored=None, of_whole_low=-3e-5, of_whole_high=0.4)
SHARES = Shares(total=4e-4, exact=True, orders=2, left_out=0, rows=(A, B))
FORCED = Shares(total=1e-4, exact=True, orders=2, left_out=0, rows=(replace(A, share=8e-5), replace(B, share=2e-5)))
INSIDE = Shares(
    total=4e-4,
    exact=False,
    orders=16,
    left_out=0,
    rows=(
        A,
        replace(A, name="layers[0].moe.gate:output", depth=1, share=6e-5, standard_error=1.5e-5),
        replace(A, name="layers[1].moe.gate:output", depth=1, share=2.4e-4, standard_error=1.5e-5),
        B,
    ),
)
FIX = FixSetRow(
    toggles=(A.name,), evidence=(A.evidence,), kl=8e-5, upper=9e-5, exact=False, minimal=True, spoiled_by=()
)
PAIR = fill(
    InteractionRow, first=A.name, second=B.name, in_reference=2e-4, in_reference_low=1e-4, in_reference_high=3e-4
)
LAYERS = ("layers[0]", "layers[1]", "layers[7]")
FOUND = Attribution(
    shares=SHARES,
    forced=FORCED,
    apart=None,
    inside=INSIDE,
    interactions=(PAIR,),
    fixes=(FIX,),
    complete=True,
    exhaustive=2,
    refused=0,
    kept=None,
    in_fp32=None,
    mixtures=12,
)


def sections(attribution: Attribution) -> dict[str, str]:
    report = replace(REPORT, attribution=attribution)
    return {
        group.title: "\n".join(line.rstrip() for line in printed(group.blocks, 140).splitlines())
        for group in (*show(report), *show_fixes(report))
    }


def test_the_waterfall_with_and_without_forced_routes() -> None:
    lines = [" ".join(line.split()) for line in sections(FOUND)["KL waterfall"].splitlines()]
    assert lines[:4] == [
        "toggle share of KL 95% k3 alone restored ids forced role",
        "moe.gate:output (read | inferred) 3.00e-04 75% 60% to 85% 2.50e-04 80% 20% 20% culprit",
        "lm_head:output (verified) 1.00e-04 25% >-0.1% to 40% 30% cannot run 5% contributes",
        "whole 4.00e-04 100% 25%",
    ]
    assert "a mean over all 2 orders" in lines[4]
    plain = sections(replace(FOUND, forced=None))["KL waterfall"]
    assert "ids forced" not in plain
    drawn = replace(SHARES, exact=False, orders=16, left_out=3, rows=(replace(A, of_whole_low=-math.inf), B))
    shown = sections(replace(FOUND, shares=drawn))["KL waterfall"]
    assert "unknown" in shown
    assert "a mean over 16 drawn orders" in shown
    assert "3 orders are left out: on their way an op refuses a mixture, or a KL is not finite." in shown


def test_parts_are_told_as_shares_of_their_toggle() -> None:
    lines = sections(FOUND)["Inside the largest shares"].splitlines()
    assert [" ".join(line.split()[:6]) for line in lines[1:4]] == [
        "moe.gate:output (read | inferred) 100% 80%",
        "layers[0].moe.gate:output (read | inferred) 20% 5%",
        "layers[1].moe.gate:output (read | inferred) 80% 5%",
    ]
    assert "lm_head" not in "\n".join(lines), "nothing of it was taken apart"
    assert lines[-1].startswith("of it: the part's percent of its toggle's share, from 16 drawn orders, with the")
    every = sections(replace(FOUND, inside=replace(INSIDE, exact=True, orders=6)))["Inside the largest shares"]
    assert "from all 6 orders; large parts" in every
    assert "Inside the largest shares" not in sections(replace(FOUND, inside=replace(INSIDE, rows=(A, B))))


def test_interactions_that_are_sure_and_tell_something() -> None:
    assert " ".join(sections(FOUND)["Interactions"].splitlines()[1].split()) == (
        "moe.gate:output (read | inferred) and lm_head:output (verified) 50% cannot run"
    )
    assert "Interactions" not in sections(replace(FOUND, interactions=(replace(PAIR, in_reference_low=-1e-4),)))
    small = replace(PAIR, in_reference=3e-6, in_reference_low=2e-6)
    assert "Interactions" not in sections(replace(FOUND, interactions=(small,)))
    saturated = replace(SHARES, rows=(replace(A, role="saturated"), replace(B, role="saturated")))
    assert "Interactions" not in sections(replace(FOUND, shares=saturated))


def test_fixes() -> None:
    shown = sections(replace(FOUND, fixes=(FIX, replace(FIX, exact=True, minimal=False))))["Smallest fixes"]
    assert [" ".join(line.split()) for line in shown.splitlines()[1:]] == [
        "moe.gate:output (read | inferred) 8.00e-05 9.00e-05",
        "moe.gate:output (read | inferred) all bits 9.00e-05 perhaps not minimal",
    ]
    undone = sections(replace(FOUND, fixes=(replace(FIX, spoiled_by=("x",)),) * 10))["Smallest fixes"]
    assert undone.count("undone by restoring more") == 8
    assert undone.endswith("and 2 more, in the JSON")
    pair = replace(FIX, toggles=("a", "b"), evidence=("read", "unknown | read"))
    two = sections(replace(FOUND, fixes=(pair, FIX)))["Smallest fixes"].splitlines()
    assert [" ".join(line.split()[:4]) for line in two[1:3]] == ["a (read) 8.00e-05 9.00e-05", "and b (unknown |"]
    assert "nothing" in sections(replace(FOUND, fixes=(replace(FIX, toggles=(), evidence=()),)))["Smallest fixes"]
    assert "Smallest fixes" not in sections(replace(FOUND, fixes=()))


def test_what_it_cost_and_no_shares() -> None:
    assert search_cost(12, fill(Cost, search_passes=2, search_seconds=3.25)) == (
        "12 mixtures in 2 passes over the weights, 3.2 s, beyond what the bisection saw; one by one they take 12 passes"
    )
    none = sections(replace(FOUND, shares=Shares(total=None, exact=True, orders=2, left_out=0, rows=())))
    assert none["KL waterfall"].startswith("No shares: the candidate's KL is not finite")
    stopped = sections(replace(FOUND, shares=replace(SHARES, rows=())))
    assert stopped["KL waterfall"] == "No shares: in each order of restoring there is a mixture that an op refuses."


def test_places_are_shown_by_number_with_what_is_gone() -> None:
    rows = [(("layers[1]",), 0.3, True), (("layers[0]", "layers[1]"), 0.55, False), (LAYERS, 1.0, True)]
    sets = tuple(
        RestoredRow(
            places=places,
            kl=4e-4 * (1 - gone),
            upper=5e-4,
            gone=gone,
            gone_low=gone - 0.1,
            gone_high=math.inf if gone == 1 else gone + 0.1,
            exact=gone == 1,
            best=best,
        )
        for places, gone, best in rows
    )
    of_layers = PlacesRow(by="layer", unquantised=True, shares=SHARES, sets=sets, fixes=(), complete=True, exhaustive=3)
    shown = sections(replace(FOUND, places=(of_layers,)))["Left unquantised, by layer"].splitlines()
    assert [" ".join(line.split()) for line in shown[1:4]] == [
        "layers[1] 2.80e-04 30% 20% to 40% 5.00e-04",
        "layers[0:2] 1.80e-04 55% 45% to 65% 5.00e-04 perhaps not the best",
        "layers[0:2,7] all bits 100% unknown 5.00e-04",
    ]
    assert "Each row was run: these are left unquantised" in shown[4]
    by_op = replace(of_layers, unquantised=False, by="op", sets=sets * 4)
    of_ops = sections(replace(FOUND, places=(by_op,)))["Rounded as in the reference, by op"]
    assert "and 4 more, in the JSON" in of_ops
    assert place_words(replace(FOUND, places=(of_layers,))) == "layers[0:2] left unquantised removes 55% (45% to 65%)"
    # All places are what the line says already; and a third is not half.
    assert place_words(replace(FOUND, places=(replace(of_layers, sets=(sets[0], sets[2])),))) == ""
    assert place_words(None) == ""
