"""The seven lines as text; they stand first and again last on the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.divergence.data import Choice, Root
from moeparity.bisection.floor.data import Floor
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.record.data import Record
from moeparity.bisection.toggles.data import ToggleResult
from moeparity.bisection.verdict.data import Metrics
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import Verdict
from moeparity.output.blocks import Status
from moeparity.output.status import judged
from moeparity.output.words import few, quantity
from moeparity.plan.evidence import NOT_KNOWN
from moeparity.plan.schedule.settings import NAMES
from moeparity.plan.sides import CANDIDATE

_NAMED = 4
"""This many choices of the first root are shown besides its first; `--section starts` has all."""


def recorded(records: Sequence[Record]) -> str:
    """The line `record`: of each engine that left one, if both did with the name of its side."""
    with_records = [record for record in records if record.status != "no record"]
    if not with_records:
        return "none given: this compares two simulations"
    if len(records) == 1:
        return _recorded(with_records[0])
    return "; ".join(f"{record.side} {_recorded(record)}" for record in with_records)


def _recorded(record: Record) -> str:
    logprobs = record.logprobs
    if logprobs is None or record.status == "reproduced":
        return str(record)
    start = "" if logprobs.from_position is None else f", from position {logprobs.from_position} on"
    return f"not reproduced: mean |delta| {logprobs.mean_abs_delta:.2g}, floor {logprobs.floor:.2g}{start}"


def decided_verdict(record: Record, verdict: Verdict) -> str:
    """The verdict if a record decides it. If the recipe has a gate on the record, that gate's figure comes first."""
    if record.gate is None or record.gate.status == "pass":
        return judged(verdict)
    against = judged(record.gate, f"{record.gate.metric} against the record")
    figure = f"{gated_name(verdict.metric)} {verdict.value.estimate:.2g}"
    return f"{against}; between both sides {figure}, gate {verdict.below:g}"


def starts(roots: Sequence[Root], nonfinite: Nonfinite | None, metrics: Metrics) -> str:
    """The line `starts`: the first root with its first choice; before it the first NaN."""
    if not_finite := nonfinite_start(nonfinite, metrics):
        return not_finite
    if not roots:
        return "nowhere: no node gives other bits on equal inputs"
    root = roots[0]
    if not root.choices:
        return f"{root.node}: no choice is known that differs there"
    others = [choice.attribute for choice in root.choices[1:]]
    further = f", beside {few(others, _NAMED)}" if others else ""
    return f"{_place(root.node, root.choices[0])}: {_sides(root.choices[0])}{further}"


def nonfinite_start(nonfinite: Nonfinite | None, metrics: Metrics) -> str:
    """The candidate's first NaN or infinity, if its log-probabilities are not finite; else ""."""
    first = [place for place in nonfinite.first if place.side == CANDIDATE] if nonfinite else []
    if not first or not metrics.nonfinite_tokens:
        return ""
    kind = "NaN" if first[0].nan else "an infinity"
    return f"{kind} at {first[0].node}, sequence {first[0].sequence}, position {first[0].position}"


def _place(node: str, choice: Choice) -> str:
    """The address of a choice; parts of the schedule have no node."""
    return f"{node}: {choice.attribute}" if choice.attribute in NAMES else f"{node}:{choice.attribute}"


def _sides(choice: Choice) -> str:
    return f"{choice.reference} | {choice.candidate} ({choice.reference_evidence} | {choice.candidate_evidence})"


def floor(measured: Floor | None, judged: Verdict) -> str:
    """The line `floor`: how far the reference differs from itself."""
    if measured is None:
        return "not measured (`floor: false`)"
    if not measured.trials:
        return "none: one sequence, and no order of a sum to draw"
    if not measured.bit_identical and not measured.largest > 0:
        return f"{measured.largest:g}, though bits differ, reference against itself reordered"
    if measured.bit_identical:
        return f"none: the reference has the same bits in {quantity(len(measured.trials), 'other way')}"
    asks = "; the gate is lower, so only equal bits surely pass" if judged.below < measured.largest else ""
    return f"{measured.largest:.2g}, reference against itself reordered{asks}"


def sure(toggles: Sequence[ToggleResult], sequences: int, tokens: int, *, synthetic: bool) -> str:
    """The line `sure`: how many values have which evidence, and how many sequences and tokens were scored."""
    active = [toggle for toggle in toggles if not toggle.had_no_effect and toggle.parent is None]
    levels = Counter(level for toggle in active for level in (toggle.reference_evidence, toggle.candidate_evidence))
    if not levels:
        values = "nothing differs that acts"
    else:
        # The least sure values come first.
        order = sorted(levels, key=lambda level: (level not in NOT_KNOWN, -levels[level]))
        values = "values " + ", ".join(f"{levels[level]} {level}" for level in order)
    note = "; random weights" if synthetic else ""
    return f"{values}; {quantity(sequences, 'sequence')}, {tokens:,} tokens{note}"


def show(report: ReportData) -> Iterator[Status]:
    """The seven lines."""
    summary = report.summary
    rows = (
        ("record", summary.record),
        ("starts", summary.starts),
        ("blame", summary.blame),
        ("to set", summary.to_set),
        ("floor", summary.floor),
        ("sure", summary.sure),
    )
    yield Status(state=report.verdict.status, text=summary.verdict, but=summary.but, lines=rows)
