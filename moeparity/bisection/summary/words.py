"""The lines of the summary, but for blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moeparity.bisection.divergence.report import Choice, Root
from moeparity.bisection.floor.report import Floor
from moeparity.bisection.nonfinite.report import Nonfinite
from moeparity.bisection.record.report import Record
from moeparity.bisection.toggles.report import ToggleResult
from moeparity.bisection.verdict.report import Metrics
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import Verdict
from moeparity.output.status import judged
from moeparity.output.words import quantity
from moeparity.plan.evidence import NOT_KNOWN
from moeparity.plan.schedule.settings import NAMES
from moeparity.plan.sides import CANDIDATE


def recorded(record: Record) -> str:
    """Whether the record is reproduced."""
    if record.status == "no record":
        return "none given: this compares two simulations"
    logprobs = record.logprobs
    if logprobs is None or record.status == "reproduced":
        return str(record)
    start = "" if logprobs.from_position is None else f", from position {logprobs.from_position} on"
    return f"not reproduced: mean |delta| {logprobs.mean_abs_delta:.2g}, floor {logprobs.floor:.2g}{start}"


def decided_verdict(record: Record, verdict: Verdict) -> str:
    """The verdict where the record decided it: its own figure first where the recipe bounds that."""
    if record.gate is None or record.gate.status == "pass":
        return judged(verdict)
    against = judged(record.gate, f"{record.gate.metric} against the record")
    figure = f"{gated_name(verdict.metric)} {verdict.value.estimate:.2g}"
    return f"{against}; between both sides {figure}, gate {verdict.below:g}"


def starts(roots: Sequence[Root], nonfinite: Nonfinite | None, metrics: Metrics) -> str:
    """The first root with its first choice; before it the first NaN."""
    if not_finite := nonfinite_start(nonfinite, metrics):
        return not_finite
    if not roots:
        return "nowhere: no node gives other bits on equal inputs"
    root = roots[0]
    if not root.choices:
        return f"{root.node}: no choice is known that differs there"
    further = f", and {quantity(len(root.choices) - 1, 'choice')} more" if root.choices[1:] else ""
    return f"{root.node}: {_sides(root.choices[0])}{further}"


def nonfinite_start(nonfinite: Nonfinite | None, metrics: Metrics) -> str:
    """The first NaN or infinity of a candidate whose log-probabilities are none; else empty."""
    first = [place for place in nonfinite.first if place.side == CANDIDATE] if nonfinite else []
    if not first or not metrics.nonfinite_tokens:
        return ""
    kind = "NaN" if first[0].nan else "an infinity"
    return f"{kind} at {first[0].node}, sequence {first[0].sequence}, position {first[0].position}"


def _sides(choice: Choice) -> str:
    # Two values of a node's choice tell what it is; `none | 128 tokens` does not.
    name = f"{choice.attribute} " if choice.attribute in NAMES else ""
    return f"{name}{choice.reference} | {choice.candidate} ({choice.reference_evidence} | {choice.candidate_evidence})"


def floor(measured: Floor | None, judged: Verdict) -> str:
    """How far the reference lies from itself."""
    if measured is None:
        return "not measured (`floor: false`)"
    if not measured.trials:
        return "none: one sequence, and no order of a sum to draw"
    if not measured.bit_identical and not measured.largest > 0:
        return f"{measured.largest:g}, though bits differ, reference against itself reordered"
    if measured.bit_identical:
        return f"none: the reference has the same bits in {quantity(len(measured.trials), 'other way')}"
    asks = ": this gate asks for bits" if judged.below < measured.largest else ""
    return f"{measured.largest:.2g}, reference against itself reordered{asks}"


def sure(toggles: Sequence[ToggleResult], sequences: int, tokens: int, *, synthetic: bool) -> str:
    """How many of the values it rests on are how sure, and how many sequences were looked at."""
    active = [toggle for toggle in toggles if not toggle.had_no_effect and toggle.parent is None]
    levels = Counter(level for toggle in active for level in (toggle.reference_evidence, toggle.candidate_evidence))
    if not levels:
        values = "nothing differs that acts"
    else:
        # What is least sure first.
        order = sorted(levels, key=lambda level: (level not in NOT_KNOWN, -levels[level]))
        values = "values " + ", ".join(f"{levels[level]} {level}" for level in order)
    note = "; random weights" if synthetic else ""
    return f"{values}; {quantity(sequences, 'sequence')}, {tokens:,} tokens{note}"
