"""Groups of ranks that attend apart (data-parallel attention): which sequences each group has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from moeparity.plan.schedule.steps import Span, Step, with_spans


def dealt(steps: Iterable[Step], count: int) -> dict[int, int]:
    """By sequence, its group. Each step's new sequences are split into consecutive runs of sizes as equal as possible,
    one for each group; a sequence stays in its group, since its keys are there.
    """
    group_of: dict[int, int] = {}
    for step in steps:
        new = [sequence for sequence in dict.fromkeys(span.sequence for span in step.spans) if sequence not in group_of]
        group_of |= {sequence: place * count // len(new) for place, sequence in enumerate(new)}
    return group_of


def of_group(step: Step, group_of: dict[int, int], group: int) -> Step | None:
    """The part of a step that one group computes; None where it has no sequence in it."""
    places = [place for place, span in enumerate(step.spans) if group_of[span.sequence] == group]
    if not places:
        return None
    own_step = replace(with_spans(step, places), copies=())
    return own_step if step.shape != "dense" or _is_rectangle(own_step.spans) else replace(own_step, shape="flat")


def _is_rectangle(spans: tuple[Span, ...]) -> bool:
    """Whether these are the same tokens of consecutive sequences."""
    first = spans[0]
    return all((s.sequence, *s[1:]) == (first.sequence + place, *first[1:]) for place, s in enumerate(spans))
