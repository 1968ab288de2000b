"""The trials of every toggle as a picture, and the toggles that change nothing."""

from __future__ import annotations

import math

from markupsafe import Markup

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Figures
from moeparity.bisection.toggles.report import ToggleResult
from moeparity.bisection.toggles.text import no_effect_table, trial_words
from moeparity.output.html.markup import markup, tag
from moeparity.output.html.page import Block
from moeparity.output.html.plots import legend
from moeparity.output.html.strips import Scale, axis, dot, mark, strip, whisker

_KEYS = {
    "alone": "alone: the reference with this one choice of the candidate",
    "restored": "restored: the candidate with this one choice of the reference, 95% interval",
    "whole": "the candidate's KL",
}


def _trials(report: Report) -> Figures:
    acting = [toggle for toggle in report.toggles if toggle.parent is None and not toggle.had_no_effect]
    total = report.metrics.kl
    if not acting or not math.isfinite(total):
        return
    scale = Scale.over([total, *(value for toggle in acting for value in _values(toggle, total))])
    lines = [_line(toggle, total, scale) for toggle in acting]
    table = tag("table", tag("tbody", lines), class_="bars")
    yield Block(
        title="Each choice alone, and restored",
        body=legend(_KEYS) + table + axis(scale, "KL(trial || reference), nats per token", ".2g"),
    )


def _values(toggle: ToggleResult, total: float) -> list[float]:
    trials = [trial.kl for trial in (toggle.alone, toggle.restored) if trial is not None]
    return [*trials, total + toggle.restored_change_low, total + toggle.restored_change_high]


def _line(toggle: ToggleResult, total: float, scale: Scale) -> Markup:
    parts = [mark(scale, total, "whole")]
    if toggle.restored is not None and not toggle.masked:
        low, high = total + toggle.restored_change_low, total + toggle.restored_change_high
        if math.isfinite(low) or math.isfinite(high):
            parts.append(whisker(scale, low, high))
        parts.append(dot(scale, toggle.restored.kl, "restored"))
    if toggle.alone is not None:
        parts.append(dot(scale, toggle.alone.kl, "alone"))
    values = f"{toggle.reference} ({toggle.reference_evidence}) -> {toggle.candidate} ({toggle.candidate_evidence})"
    alone, restored = trial_words(toggle, total)
    number = [tag("small", f"alone {alone}"), tag("small", f"restored {restored}")]
    name = [tag("span", toggle.name, class_="name"), tag("small", values)]
    return tag(
        "tr", [tag("th", name, scope="row"), tag("td", strip(parts), class_="drawn"), tag("td", number, class_="num")]
    )


def _no_effect(report: Report) -> Figures:
    idle = [toggle for toggle in report.toggles if toggle.had_no_effect]
    if idle:
        yield Block(title="", body=markup(no_effect_table(idle), "Choices without effect"))


FIGURES = {"toggles": _trials, "no_effect": _no_effect}
