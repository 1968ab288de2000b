"""Reports by hand of the commands beside `bisect`: sweep, variance, flips, mine, runs; and the questions of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from moeparity.bisection.flips.data import FlipDetail, LayerDetail, MarginBin, Origin, RoutingFlips
from moeparity.bisection.flips.document import document as flips_document
from moeparity.bisection.flips.run import Flipped
from moeparity.bisection.mine.report import Calibration, Check, Lifts, Mined, MinedPrompt, MinedToken
from moeparity.bisection.mine.show import document as mine_document
from moeparity.bisection.report import Report
from moeparity.bisection.runs.report import Change, ChoiceChange, Comparison, NodeChange, RunHead
from moeparity.bisection.runs.show import RunRow, listed
from moeparity.bisection.runs.show import document as runs_document
from moeparity.bisection.sections import SECTIONS, screen
from moeparity.bisection.sections import document as bisect_document
from moeparity.bisection.sweep.show import document as sweep_document
from moeparity.bisection.variance.report import GroupVariance, LayerVariance, SideVariance, VarianceReport
from moeparity.bisection.variance.show import document as variance_document
from moeparity.bisection.variance.show import reading
from moeparity.output.blocks import Block, Document, lines
from moeparity.output.findings import Finding
from moeparity.search.blame import Fix
from tests.bisection.flips.test_show import DETAIL, FLIPS, MARGINS
from tests.bisection.record.records import OFF, of
from tests.bisection.reports import REPORT, fill
from tests.bisection.screens.answers import SUMMARIES
from tests.bisection.screens.choices import FIXES
from tests.bisection.screens.places import COSTLY, UNKNOWN
from tests.bisection.sweep.test_show import FAIL, REPORTS, swept
from tests.bisection.test_screen import COST, RUN, SOUND
from tests.bisection.variance.test_report import DISTANCE, EQUAL, FIRST, GROUP, SIDE, VARYING, side
from tests.screens import Screens

POINTS = tuple(None if report is None else replace(report, run=RUN) for report in REPORTS)
UNLIKE = replace(FAIL, record=of(OFF), run=RUN)
SWEEPS: Screens = {
    "every verdict": sweep_document(swept(POINTS)),
    "two keys, a warning, a record that is not reproduced": sweep_document(
        swept((replace(UNLIKE, warnings=("A warning.",)), UNLIKE), dtype=("bf16", None), batch_invariant=(True, False))
    ),
    "equal bits": sweep_document(swept(POINTS[:1], n=(1,))),
    "nothing ran": sweep_document(swept((None, None), dtype=("bf16", "fp32"))),
}
BEHIND = (
    LayerVariance(name="layers[0]", first_node="", tokens=0, computed=48),
    LayerVariance(name="layers[1]", first_node=FIRST.node, tokens=3, computed=48),
)
FAR = replace(VARYING, layers=BEHIND, distance=replace(DISTANCE, k3=1.1e-3, max_abs_delta=0.222))
PACKS = GroupVariance(
    kind="packed",
    against="alone",
    is_one_model=False,
    comparisons=(replace(VARYING, composition="pack of 3"), replace(VARYING, composition="pack of 4")),
    left_out=("pack of 5: too long", "pack of 6: too long"),
)


def varied(*sides: SideVariance, reasons: tuple[str, ...] = (), synthetic: int | None = None) -> Document:
    return variance_document(
        VarianceReport(
            run=RUN if synthetic is None else replace(RUN, sampling="8 new tokens per prompt, temperature 1, seed 7"),
            synthetic=synthetic,
            sides=sides,
            degeneracy=SOUND,
            reasons=reasons,
            reading=tuple(reading(sides)),
            cost=COST,
        )
    )


BOTH = replace(SIDE, sides=("reference", "candidate"), seeing={"linear": 4, "mine:norm": 1}, groups=(GROUP,))
VARIANCES: Screens = {
    "one of two varies": varied(side(replace(EQUAL, layers=BEHIND), FAR)),
    "rounded away again": varied(side(replace(VARYING, ratio=EQUAL.ratio))),
    "nothing varies, ops depend on it": varied(SIDE),
    "nothing varies, no op depends on it": varied(replace(SIDE, seeing={})),
    "nothing varies, which says nothing": varied(SIDE, reasons=("every sequence repeats one token id",)),
    "packs that are not kept apart, a function, both sides, random weights": varied(
        replace(BOTH, groups=(replace(GROUP, comparisons=(FAR,)), PACKS)), synthetic=7
    ),
    "packs in which nothing varies": varied(replace(side(EQUAL, is_one_model=False), seeing={})),
    "one op depends on it": varied(replace(side(VARYING), seeing={"linear": 1})),
    "a prefill and a decode": varied(
        replace(SIDE, groups=(replace(GROUP, kind="prefill"), replace(GROUP, kind="decode")))
    ),
    "two functions, no ops": varied(
        replace(side(FAR), seeing={"mine:norm": 1, "mine:gate": 2}), replace(side(FAR, is_one_model=False), seeing={})
    ),
}


def counted(flips: RoutingFlips, *findings: Finding, same_tokens: int | None = None) -> Document:
    flipped = Flipped(
        reference="hf-eager",
        candidate="my-server",
        sequences=30,
        same_tokens=same_tokens,
        flips=flips,
        findings=findings,
        map=torch.zeros(1, 1, 1, dtype=torch.uint8),
    )
    return flips_document(flipped, "recipe.yaml")


def detailed(detail: FlipDetail) -> RoutingFlips:
    return replace(FLIPS, detail=detail)


BINS = tuple(MarginBin(low=2.0**i, high=2.0 ** (i + 1), token_layers=30 + i, flips=i) for i in range(25))
EVERY_ORIGIN = Origin(root_gate=3, root_router=1, after_own=5, after_others=2, before_any=1, unknown=4)
RECORDED_ONLY = replace(
    DETAIL,
    origin=None,
    margins=None,
    layers=(LayerDetail(layer=1, origin=None, weight_drift=None, margins=None),),
    left_at=(),
    choices=(),
    cost=None,
)
RATES = replace(DETAIL.rates, weight_drift=0.0111, weight_drift_max=0.222)
FLIP_DOCUMENTS: Screens = {
    "the whole picture, what the recipe expects": counted(
        FLIPS,
        Finding(expectation="any_layer < 0.05", status="fail", found="0.075"),
        Finding(expectation="set_differs < 0.1", status="ok", found="0.05"),
    ),
    "all that may be there beside": counted(
        detailed(
            replace(
                COSTLY,
                rates=RATES,
                origin=EVERY_ORIGIN,
                margins=replace(MARGINS, bins=BINS, tie_flips=1, group_flips=2),
                layers_per_token=(200, *([1] * 40)),
                left_at=DETAIL.left_at * 11,
                choices=DETAIL.choices * 11,
                layers=(LayerDetail(layer=1, origin=UNKNOWN, weight_drift=None, margins=None),),
            )
        )
    ),
    "records of the same tokens": counted(detailed(RECORDED_ONLY), same_tokens=30),
    "records of the same tokens in some sequences": counted(detailed(RECORDED_ONLY), same_tokens=12),
    "records of tokens that are not known": counted(
        detailed(replace(DETAIL, margins=replace(MARGINS, bins=(), group_flips=1))), same_tokens=0
    ),
    "other slots alone": counted(detailed(replace(DETAIL, rates=replace(RATES, set_differs=0.0)))),
    "no flip": counted(detailed(replace(DETAIL, rates=replace(RATES, set_differs=0.0, ordered_slots=0.0)))),
}


def lifts(prompts: int, flipped: int, lift: float = 3.3) -> Lifts:
    return Lifts(
        prompts=prompts,
        tokens=111,
        flipped=flipped,
        expected=11.5,
        share=0.1,
        lift=lift,
        margin_lift=math.nan if math.isnan(lift) else 2.2,
        ceiling=lift * 2,
    )


PROMPTS = tuple(
    MinedPrompt(prompt=i, tokens=10, expected=5 - i / 4, input_ids=(), mask=(), probability=()) for i in range(12)
)
TOKENS = tuple(
    MinedToken(prompt=i, position=3, token=77, probability=0.9 - i / 100, layer=1, margin=0.01 * i) for i in range(3)
)
MINED = Mined(
    reference="hf-eager, bf16, micro-batch 8",
    candidate="my-server, fp16, micro-batch 4",
    calibration=Calibration(sequences=1, tokens=222, flipped=22),
    prompts_read=44,
    tokens_read=444,
    expected=55.5,
    repeated=2,
    draws=16,
    prompts=PROMPTS,
    tokens=TOKENS,
    check=Check(drawn=lifts(4, 5), mined=lifts(12, 55)),
)
MINES: Screens = {
    "checked, written": mine_document(MINED, "recipe.yaml", Path("mined.jsonl")),
    "checked, nothing flips": mine_document(
        replace(MINED, repeated=0, check=Check(drawn=lifts(4, 0, math.nan), mined=lifts(12, 0, math.nan))),
        "recipe.yaml",
    ),
    "no draw flips a token": mine_document(
        replace(MINED, expected=0.0, check=None, prompts=PROMPTS[:1]), "recipe.yaml"
    ),
}
HEADS = tuple(
    RunHead(folder=f"runs/{n}", kind="bisect", recipe="recipe.yaml", finished="2001-01-01 01:01", machine="Some CPU")
    for n in ("first", "second")
)
ALIKE = Comparison(
    first=HEADS[0],
    second=HEADS[1],
    environment=(),
    choices=(),
    digests=(),
    metrics=(),
    start=None,
    toggles=(),
    key=(),
    nodes=NodeChange(by="bits", compared=77, changed=0, first=None),
    values={},
)
CHANGE = Change(what="k3", first="0.0011 [0.001, 0.0012]", second=None)
RUNS: Screens = {
    "nothing changed": runs_document(ALIKE),
    "the environment alone": runs_document(
        replace(ALIKE, environment=(Change(what="torch", first="9.9.8", second="9.9.9"),))
    ),
    "everything changed": runs_document(
        replace(
            ALIKE,
            choices=(ChoiceChange(side="candidate", address="op norm:eps", nodes=1, first="1e-05", second=None),),
            digests=(Change(what="layers[0]", first="11", second="22"),),
            metrics=(CHANGE,),
            start=replace(CHANGE, what="node"),
            toggles=(replace(CHANGE, what="op norm:eps"),),
            nodes=NodeChange(by="errors", compared=77, changed=11, first="norm"),
            values={"metrics": 3, "roots": 1},
        )
    ),
    "runs that are not keyed alike": runs_document(replace(ALIKE, nodes=None, key=(replace(CHANGE, what="tokens"),))),
    "reports that are not compared": runs_document(replace(ALIKE, not_compared="one is of another version")),
    "reports that are not compared, choices that are": runs_document(
        replace(
            ALIKE,
            not_compared="one is of another version",
            choices=(ChoiceChange(side="reference", address="op norm:eps", nodes=2, first=None, second="1e-05"),),
        )
    ),
    "listed": list(
        listed(
            (
                RunRow(
                    name="first",
                    kind="bisect",
                    recipe="recipe.yaml",
                    verdict="fail",
                    value="k3 0.0011",
                    when="2001-01-01 01:01",
                    machine="Some CPU",
                    state="finished",
                ),
                fill(RunRow, name="second", kind="sweep", recipe="recipe.yaml", verdict="pass", state="unfinished"),
                fill(RunRow, name="third", state="third/run.json: no run"),
            ),
            "runs",
        )
    ),
    "none to list": list(listed((), "runs")),
}


def questions(report: Report) -> list[Block]:
    """The questions of a page, each with what stands there where a report has nothing for it."""
    of_page = bisect_document(report).questions
    return [lines(*(f"{question.title} ({question.short}) {question.absent}".rstrip() for question in of_page))]


ANSWERED = SUMMARIES["nobody"]
FIXABLE = replace(SUMMARIES["culprits, floor above the gate"], blame=replace(REPORT.blame, fix=Fix(toggles=("a",))))
QUESTIONS: Screens = {
    "nothing has to be restored, routes compared": questions(ANSWERED),
    "a fix is not searched for, no router": questions(replace(FIXABLE, flips=None)),
    "sections on request": [
        lines(*dict.fromkeys(f"--section {each.asked_for}  {each.holds}" for each in SECTIONS if each.asked_for))
    ],
    "a section that is not there": list(screen(replace(REPORT, warnings=()), ("oracle",)))[-1:],
    "no fix is known": questions(replace(FIXABLE, attribution=FIXES["none, one mixture"].attribution)),
}
DOCUMENTS: Mapping[str, Screens] = {
    "questions": QUESTIONS,
    "sweep": SWEEPS,
    "variance": VARIANCES,
    "flips": FLIP_DOCUMENTS,
    "mine": MINES,
    "runs": RUNS,
}
