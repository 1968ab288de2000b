"""Reports by hand for the sections that answer first, and for what a report was made with; no number is a real one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from moeparity.bisection.blame.show import other_functions, to_set, who
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.degeneracy.show import sound
from moeparity.bisection.determinism.data import NotDeterministic
from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.divergence.data import KnownDifference, Root
from moeparity.bisection.floor.data import Floor, FloorTrial
from moeparity.bisection.nonfinite.data import FirstNonfinite, Nonfinite
from moeparity.bisection.nonfinite.show import nonfinite_reading
from moeparity.bisection.provenance.data import FileDigest, Provenance
from moeparity.bisection.record.data import Record
from moeparity.bisection.record.show import decided_blame, decided_start, decided_step
from moeparity.bisection.report import Report
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.summary.show import decided_verdict, floor, recorded, starts, sure
from moeparity.bisection.toggles.data import ToggleResult
from moeparity.bisection.tokens.measure import warnings
from moeparity.bisection.trace import show as of_trace
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.verdict.data import Metrics
from moeparity.metrics.verdict import Verdict
from moeparity.output.status import judged
from moeparity.search.blame import Blame, BlameKind, Fix, Part
from tests.bisection.record.records import NEAR, OFF, POWER, RIVAL, ROUTES, of
from tests.bisection.reports import REPORT, fill
from tests.bisection.screens.noise import UNLIKE_RANKS
from tests.bisection.screens.places import BATCH, BIRTH, KNOWN, ROOT, SEGMENTS, TRACED, UNSHOWN
from tests.bisection.summary.test_summary import FLAG, toggle
from tests.bisection.test_screen import FAIL, INTERVAL, METRICS, SOUND, VERDICT, ZEROS

A, B, C = "layers[*].moe.gate:output", "op combine:accumulate", "op rms_norm:eps"
ACTING = (toggle(A, 1.0, 0.1, candidate_changed_by=FLAG), toggle(B, 0.5, 0.7), toggle("op idle:form", 0, 1, idle=True))
FUNCTION = replace(
    toggle(C, 0.2, 0.9, candidate_changed_by="--eps 1e-6", reference="1e-06", candidate="0.25"), kind="semantics"
)
PASS = replace(VERDICT, status="pass", reason="all bits are equal", value=ZEROS)
BELOW = replace(VERDICT, status="pass", below=0.01, reason="the 95% interval lies below the gate")
OPEN = replace(VERDICT, status="inconclusive", below=1e-3, needed_sequences=111, reason="it holds the gate")
LONE = replace(
    OPEN,
    value=replace(INTERVAL, low=-math.inf, high=math.inf, method="none"),
    needed_sequences=None,
    reason="no interval from 1 sequence (7 tokens): one is too few; at least 25 different ones are needed",
)
TRIAL = fill(FloorTrial, name="orders drawn with seed 0")
DEGENERATE = Degeneracy(
    constant_weights=tuple(f"layers.{i}.gate.weight" for i in range(5)),
    scored_tokens=7777,
    flat=1,
    sequences=33,
    distinct=11,
    constant_sequences=33,
)


def summary(
    blame: Blame,
    *,
    verdict: Verdict = VERDICT,
    record: Record = REPORT.record,
    roots: Sequence[Root] = (ROOT,),
    nonfinite: Nonfinite | None = None,
    toggles: tuple[ToggleResult, ...] = ACTING,
    measured: Floor | None = None,
    synthetic: bool = False,
) -> Report:
    """A report whose summary says what these say together."""
    passes, metrics = verdict.status == "pass", METRICS if nonfinite is None else replace(METRICS, nonfinite_tokens=7)
    return replace(
        REPORT,
        verdict=verdict,
        summary=Summary(
            verdict=judged(verdict),
            but=other_functions(toggles) if passes else (),
            record=recorded((record,)),
            starts=starts(roots, nonfinite, metrics),
            blame=who(blame),
            to_set=to_set(blame, toggles, passes=passes),
            floor=floor(measured, verdict),
            sure=sure(toggles, 30, 2100, synthetic=synthetic),
        ),
    )


def by_record(record: Record) -> Report:
    """A report whose verdict the record decides."""
    status = "fail" if record.gate is None else record.gate.status
    report = summary(Blame(kind="record"), verdict=replace(VERDICT, status=status), record=record)
    return replace(
        report,
        summary=replace(
            report.summary,
            verdict=decided_verdict(record, report.verdict),
            starts=decided_start(record, report.summary.starts),
            blame=decided_blame(record),
            to_set=decided_step(record),
        ),
    )


def by_trace(
    traced: Traced,
    roots: Sequence[Root],
    metrics: Metrics = METRICS,
    subtracted: Sequence[KnownDifference] = (),
    **verdict: Any,
) -> Report:
    """A report of a recorded candidate."""
    judgement = replace(VERDICT, **verdict)
    return replace(
        REPORT,
        verdict=judgement,
        summary=Summary(
            verdict=judged(judgement),
            record=of_trace.recorded((REPORT.record,)),
            starts=of_trace.starts(traced, roots, subtracted),
            blame=of_trace.blame(traced, roots, metrics),
            to_set=of_trace.to_set(traced, roots, None, passes=judgement.status == "pass"),
            floor=floor(None, judgement),
            sure=of_trace.sure(traced, 3, 333),
        ),
    )


def part(name: str, share: float, low: float = math.nan, high: float = math.nan) -> Part:
    return Part(name=name, part=share, low=low, high=high)


def blamed(kind: BlameKind, *parts: Part, fix: Fix | None = None, **fields: Any) -> Blame:
    return Blame(kind=kind, named=tuple(each.name for each in parts), parts=parts, fix=fix, **fields)


EVERY = Fix(toggles=(A, B), tried=False)
SUMMARIES: Mapping[str, Report] = {
    "one makes all of it": summary(blamed("one", part(A, 1.0), fix=Fix(toggles=(A,), exact=True))),
    "culprits, floor above the gate": summary(
        blamed("culprits", part(A, 0.8, 0.6, 0.9), part(B, 0.2, 0.1, 0.4), fix=Fix(toggles=(A,), leaves=0.2)),
        measured=fill(Floor, trials=(TRIAL,), largest=3.33e-4),
    ),
    "interchangeable by trials, floor below the gate": summary(
        blamed("interchangeable", part(A, 0.84), part(B, 0.99), fix=EVERY),
        measured=fill(Floor, trials=(TRIAL,), largest=1.1e-5),
    ),
    "interchangeable by shares, equal bits in other orders": summary(
        blamed("interchangeable", part(A, 0.5, 0.1, 0.9), part(B, 0.5, 0.1, 0.9), fix=EVERY),
        measured=fill(Floor, trials=(TRIAL,), bit_identical=True),
    ),
    "restoring any of several helps, bits differ though the floor is 0": summary(
        blamed("any", part(A, 0.9), part(B, 0.7), fix=Fix(toggles=(A,), leaves=1e-4)),
        measured=fill(Floor, trials=(TRIAL,)),
    ),
    "one surely lowers it, no floor to draw": summary(
        blamed("most", part(A, 0.998), fix=Fix(toggles=(B,), leaves=0.4)), measured=fill(Floor)
    ),
    "shares that restoring does not lower": summary(blamed("contributes", part(A, 0.6), part(B, 0.4), fix=EVERY)),
    "not decided, most is known": summary(
        Blame(kind="undecided", parts=(part(A, 0.6),), fix=EVERY), verdict=OPEN, synthetic=True
    ),
    "not decided, what would decide is known": summary(
        Blame(kind="undecided", would_decide="about 111 such sequences are needed", fix=EVERY), verdict=LONE
    ),
    "two offset each other": summary(
        Blame(kind="offset", named=(A, B), fix=Fix(toggles=(A, B))), toggles=(*ACTING, FUNCTION)
    ),
    "flags that only the reference has, of every one": summary(
        blamed("culprits", part(A, 0.9, 0.8, 0.95), fix=Fix(toggles=(A,), leaves=0.1)),
        toggles=(toggle(A, 1.0, 0.1, reference_changed_by=FLAG),),
    ),
    "flags that only the reference has, of one of two; many to restore": summary(
        blamed("undecided", fix=Fix(toggles=tuple("abcdefgh"), tried=False)),
        toggles=tuple(toggle(n, 0.9, 0.9, reference_changed_by=FLAG * (n == "a")) for n in "abcdefgh"),
    ),
    "parts of a schedule alone, a root without a choice": summary(
        blamed("culprits", part("micro_batch", 1.0, 0.9, 1.1), fix=Fix(toggles=("micro_batch",), leaves=0.2)),
        toggles=(replace(toggle("micro_batch", 1.0, 0.1), reference="8"),),
        roots=(replace(ROOT, choices=()),),
    ),
    "a part of the schedule starts it": summary(blamed("most", part(B, 0.7), fix=Fix(toggles=(B,))), roots=(BATCH,)),
    "a pass that says nothing": summary(
        Blame(kind="nobody"), verdict=sound(PASS, DEGENERATE), roots=(), toggles=(), measured=fill(Floor)
    ),
    "what acts is not seen": summary(Blame(kind="unseen", named=(A, B)), verdict=PASS),
    "a pass, yet another function": summary(Blame(kind="unseen", named=(C,)), verdict=BELOW, toggles=(FUNCTION,)),
    "nobody": summary(Blame(kind="nobody"), verdict=PASS, roots=(), toggles=()),
    "NaN that one makes": summary(
        Blame(kind="not finite", named=(A,), fix=Fix(toggles=(A,), ends=True)),
        verdict=replace(
            VERDICT, reason="tokens with NaN or infinite logits: 7", value=replace(INTERVAL, estimate=math.nan)
        ),
        nonfinite=fill(Nonfinite, first=(BIRTH,)),
    ),
    "an infinity": summary(
        Blame(kind="not finite"), nonfinite=fill(Nonfinite, first=(replace(BIRTH, nan=0, infinite=1),))
    ),
    "NaN that nobody is known to make": summary(Blame(kind="not finite"), nonfinite=fill(Nonfinite, first=(BIRTH,))),
    "a record: the rival side has it": by_record(of(OFF, rival=RIVAL, causes=(POWER,))),
    "a record: pads": by_record(of(OFF, pads=12)),
    "a record: a likely cause": by_record(of(OFF, causes=(POWER,))),
    "a record: from a layer on": by_record(of(OFF, ROUTES)),
    "a record: no known cause, no routes": by_record(of(OFF)),
    "a record: no known cause, routes reproduced": by_record(
        of(OFF, replace(ROUTES, reproduced=True, layers=ROUTES.layers[1:2]))
    ),
    "a record that is reproduced, its gate open": by_record(
        of(NEAR, gate=replace(OPEN, needed_sequences=25, metric="k3"))
    ),
    "a record that is reproduced, its gate open for nobody knows how long": by_record(
        of(NEAR, gate=replace(OPEN, needed_sequences=None))
    ),
    "a record that is reproduced, its gate below the floor": by_record(of(NEAR, gate=VERDICT)),
    "a trace, by grafts": by_trace(TRACED, (ROOT, replace(ROOT, node="lm_head"))),
    "a trace without segments": by_trace(replace(TRACED, segments=(), together=False), (ROOT,)),
    "a trace that no scored token shows, with nodes that it does not show": by_trace(
        replace(TRACED, segments=()),
        (*UNSHOWN, replace(ROOT, node="lm_head")),
        replace(METRICS, unequal_tokens=0),
    ),
    "a trace beside a good run": by_trace(TRACED, (), subtracted=KNOWN),
    "a trace in which only tokens differ": by_trace(replace(TRACED, segments=()), ()),
    "a trace in which nothing differs": by_trace(
        replace(TRACED, segments=()), (), status="pass", value=ZEROS, reason="all bits are equal"
    ),
    "a trace with NaN": by_trace(
        replace(TRACED, segments=(*SEGMENTS[:1], replace(SEGMENTS[1], kl=math.nan))),
        (ROOT,),
        replace(METRICS, nonfinite_tokens=7),
    ),
}


def warned(temperature: float) -> Report:
    """A report with every warning of a plan: random weights, other sums over ranks, another temperature."""
    graph = SimpleNamespace(scores="log_probs")
    side = SimpleNamespace(plan=SimpleNamespace(graph=graph, distinct=[SimpleNamespace(settings={})]))
    sample = SimpleNamespace(temperature=temperature)
    recipe = SimpleNamespace(synthetic=7, weights="synthetic(7)", tokens=SimpleNamespace(sample=sample))
    sides = {"reference": side, "candidate": side}
    stand_in: Any = SimpleNamespace(recipe=recipe, real_ranks=UNLIKE_RANKS, sides=sides)
    return replace(REPORT, warnings=tuple(warnings(stand_in)))


WARNINGS = {
    "random weights, other sums over ranks, temperature 0.5": warned(0.5),
    "temperature 0": warned(0.0),
    "none": REPORT,
}
DEGENERACIES = {
    "everything at once": replace(
        REPORT,
        degeneracy=DEGENERATE,
    ),
    "two flat tokens": replace(REPORT, degeneracy=replace(SOUND, flat=2)),
    "sound": replace(REPORT, degeneracy=SOUND),
}


def unstable(node: str, values: int, calls: int, call: str = "mine:norm") -> NotDeterministic:
    return NotDeterministic(side="candidate", call=call, node=node, values=values, of=999, calls=calls)


DETERMINISM = {
    "one node, and several": replace(
        REPORT,
        not_deterministic=(
            unstable("norm", 1, 1),
            unstable("layers[0].moe.gate", 11, 2, "mine:gate"),
            unstable("layers[1].moe.gate", 22, 2, "mine:gate"),
        ),
    )
}
METRICS_SHOWN = {
    "with an interval": FAIL,
    "exact, with the vocabulary and NaN": replace(
        FAIL,
        verdict=PASS,
        metrics=replace(METRICS, nonfinite_tokens=7),
        distribution=fill(Distribution, jsd=1.1e-4, tv=2.2e-3, max_tv=0.33, top10_jaccard=0.9876, rank_change=1.25),
    ),
}


def nowhere_finite(*first: FirstNonfinite, scored: int = 0, by: Sequence[str] = ()) -> Report:
    reading = tuple(nonfinite_reading(first, by, by, scored, (8, 16)))
    return replace(REPORT, nonfinite=Nonfinite(first=first, made_by=(), ended_by=(), reading=reading))


REFERENCE = replace(BIRTH, side="reference")
NONFINITE = {
    "one side, one scored token, one cause": nowhere_finite(BIRTH, scored=1, by=(A,)),
    "infinities in the reference, several causes": nowhere_finite(
        replace(REFERENCE, nan=0, infinite=1), scored=7, by=(A, B)
    ),
    "both kinds in padding": nowhere_finite(replace(BIRTH, infinite=3, padding=True, expert=None)),
    "both sides there": nowhere_finite(REFERENCE, BIRTH),
    "both sides, other tokens": nowhere_finite(REFERENCE, replace(BIRTH, position=4)),
    "both sides, other nodes": nowhere_finite(REFERENCE, replace(BIRTH, node="norm", op="rms_norm", expert=None)),
}
PLACED = replace(
    FAIL.candidate,
    placement="tensor 4, expert 2",
    overrides=tuple(f"{'' if i else 'set: '}op norm{i}:eps 0.5" for i in range(10)),
)
RUNS = {
    "on a CPU": FAIL,
    "on a GPU, sampled, padded, placed, with overrides": replace(
        FAIL,
        candidate=PLACED,
        run=replace(
            FAIL.run, device="cuda", threads=3, pads=44, sampling="8 new tokens per prompt, temperature 1, seed 7"
        ),
    ),
}
FUNCTION_OF_USER = (replace(FAIL.toggles[0], kind="implementation"),)
COSTS = {
    "within its estimate": FAIL,
    "more than was estimated, with a user's function": replace(
        FAIL, toggles=FUNCTION_OF_USER, cost=replace(FAIL.cost, memory_peak=2_600_000_000)
    ),
    "more than was estimated": replace(FAIL, cost=replace(FAIL.cost, memory_peak=2_600_000_000)),
    "peak not known": replace(FAIL, cost=replace(FAIL.cost, memory_peak=None)),
}
MADE_WITH = Provenance(
    recipe=FileDigest(name="recipe.yaml", bytes=111, sha256="11" * 32, of="file"),
    tokens=FileDigest(name="tokens.jsonl", bytes=2222, sha256="22" * 32, of="file"),
    weights=(FileDigest(name="model.safetensors", bytes=33_333_333, sha256="33" * 32, of="header"),),
    versions=(("moeparity", "0.0.1"), ("torch", "9.9.9")),
    system="Some System",
    cpu="Some CPU",
    capability="SOME ISA",
    device="cpu",
    threads=3,
)
REPORTS: Mapping[str, Mapping[str, Report]] = {
    "summary.show": SUMMARIES,
    "run.show": RUNS,
    "run.show_cost": COSTS,
    "tokens.show_warnings": WARNINGS,
    "degeneracy.show": DEGENERACIES,
    "determinism.show": DETERMINISM,
    "verdict.show": METRICS_SHOWN,
    "nonfinite.show": NONFINITE,
    "provenance.show": {"all of it": replace(REPORT, provenance=MADE_WITH)},
}
