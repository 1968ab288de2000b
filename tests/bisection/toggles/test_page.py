"""The picture of the trials: what is not finite, masked or unbounded is not drawn as if it were a number."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from moeparity.bisection.report import Report
from moeparity.bisection.toggles.data import ToggleResult, TrialResult
from moeparity.bisection.toggles.show import show, show_no_effect
from moeparity.output.blocks import Figure
from moeparity.output.html.blocks import markup
from moeparity.output.html.figures import drawn as picture
from tests.bisection.reports import REPORT, fill


def trial(kl: float) -> TrialResult:
    return fill(TrialResult, kl=kl, k3=kl, flipped_routes=0.0, changed_nodes=2)


def drawn(toggle: ToggleResult, total: float = 1e-3) -> str:
    report: Report = replace(REPORT, toggles=(toggle,), metrics=replace(REPORT.metrics, kl=total))
    (group,) = show(report)
    return "".join(str(picture(block)[0]) for block in group.blocks if isinstance(block, Figure))


def choice(alone: float, restored: float, low: float, high: float, **fields: object) -> ToggleResult:
    result = fill(ToggleResult, name="gate:output", alone=trial(alone), restored=trial(restored), **fields)
    return replace(result, restored_change_low=low, restored_change_high=high)


def test_both_trials_and_the_interval_are_drawn() -> None:
    html = drawn(choice(1e-3, 1e-4, -1e-3, -8e-4))
    assert (html.count("<circle"), html.count('class="whisker"')) == (2, 3)
    assert '<circle cx="96.154%" cy="50%" r="5" class="dot alone">' in html
    assert '<circle cx="9.615%" cy="50%" r="5" class="dot restored">' in html


def test_what_is_not_finite_has_no_place() -> None:
    html = drawn(choice(math.nan, 1e-4, -math.inf, math.inf))
    assert html.count("<circle") == 1
    assert 'class="whisker"' not in html
    assert drawn(choice(1e-3, 1e-4, 0, 0), total=math.nan) == ""


def test_an_unbounded_end_has_no_stop() -> None:
    assert drawn(choice(1e-3, 1e-4, -math.inf, 0.0)).count('class="whisker"') == 2


def test_what_is_masked_is_said_and_not_drawn() -> None:
    html = drawn(choice(1e-3, 1e-3, 0.0, 0.0, masked=True))
    assert "restored" not in re.findall('class="dot ([a-z]+)"', html)
    assert html.count("<circle") == 1


def test_choices_without_effect_are_listed_apart() -> None:
    idle = fill(ToggleResult, name="combine:order", alone=trial(0.0), restored=trial(0.0), had_no_effect=True)
    assert drawn(idle) == ""
    report = replace(REPORT, toggles=(idle,))
    assert "combine:order" in "".join(map(markup, show_no_effect(report)))
