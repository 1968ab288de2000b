"""Takes the nearest choices from the first pass into the report."""

from __future__ import annotations

from moeparity.bisection.context import Context
from moeparity.bisection.determinism.data import Determinism
from moeparity.bisection.nearest.data import NearestAnswers
from moeparity.bisection.nearest.observe import NEAREST


def measure(of: Context) -> NearestAnswers:
    """The answers; empty if no user's function runs. Functions that are not deterministic have none."""
    unsteady = {(unstable.call, unstable.node) for unstable in of[Determinism].not_deterministic}
    answers = of.observed.of_watch(NEAREST) or ()
    return NearestAnswers(nearest=tuple(answer for answer in answers if (answer.call, answer.node) not in unsteady))
