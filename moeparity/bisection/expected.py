"""What a recipe expects of classes of tokens, swapped blocks, spikes and updates of the weights: numbers of a report
that are held to bounds, and what judges them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from moeparity.bisection.report import Report
from moeparity.bisection.tokens.data import ClassMetrics
from moeparity.errors import did_you_mean, listed
from moeparity.output.findings import Outcome, lies
from moeparity.plan.spec.expect import Bounds, ClassBounds, Expect

Judged = tuple[str, Callable[[Report], Outcome]]
"""An expectation in words, and what judges it."""

_OF_CLASS: dict[str, tuple[str, Callable[[ClassMetrics], float]]] = {
    "k3": ("k3 of {}", lambda metrics: metrics.k3),
    "mean_abs_delta": ("mean_abs_delta of {}", lambda metrics: metrics.mean_abs_delta),
    "flips": (
        "flipped token-layers of {}",
        lambda metrics: metrics.set_flips / metrics.token_layers if metrics.token_layers else math.nan,
    ),
}
"""Key of `ClassBounds` -> how the expectation is said, and the number that it bounds."""


def of_updates(name: str, report: Report) -> float:
    """The mean size of a part, or the number of tokens with stale keys; NaN where no weights change."""
    updates = report.updates
    if updates is None:
        return math.nan
    if name == "stale_keys":
        return 0 if updates.stale_keys is None else updates.stale_keys.tokens
    return next(part.mean_abs for part in updates.parts if part.name == name.replace("_", " "))


def of_spikes(name: str, report: Report) -> float:
    """A number of the draws' spikes; NaN where none were drawn."""
    return math.nan if report.spikes is None else report.spikes.measured[name]


def of_parts(expect: Expect) -> Iterator[Judged]:
    """The expectations about classes of tokens and about swapped blocks."""
    yield from _of_classes(expect.classes or {})
    yield from _of_swaps(expect.restores or ())


def _of_classes(expected: Mapping[str, ClassBounds]) -> Iterator[Judged]:
    """The expectations about classes of tokens, by their names."""
    for name, bounds in expected.items():
        for key, (says, number) in _OF_CLASS.items():
            range_: Bounds | None = getattr(bounds, key)
            if range_ is not None:
                yield f"{says.format(name)} {range_}", partial(_class, name, range_, number)


def _of_swaps(selectors: Sequence[str]) -> Iterator[Judged]:
    """The expectations that swapping a block restores the reference."""
    for selector in selectors:
        yield f"{selector} restores all bits", partial(_swap, selector)


def _class(name: str, bounds: Bounds, number: Callable[[ClassMetrics], float], report: Report) -> Outcome:
    of_name = {metrics.name: metrics for metrics in report.classes}
    if name not in of_name:
        names = f"there are {listed(of_name)}" if of_name else "the tokens have no classes"
        return "fail", f"there is no class {name!r}; {names}.{did_you_mean(name, of_name)}"
    return lies(bounds, number(of_name[name]))


def _swap(selector: str, report: Report) -> Outcome:
    toggle = next(swap.toggle for swap in report.swaps if swap.selector == selector)
    if toggle is None:
        return "fail", "nothing differs in it"
    if toggle.restored is None:
        return "inconclusive", "an op refuses the mixture"
    remaining = f"KL {toggle.restored.kl:.3g}, {toggle.restored.changed_nodes} nodes changed"
    return ("ok", "all bits") if toggle.restores_all else ("fail", remaining)
