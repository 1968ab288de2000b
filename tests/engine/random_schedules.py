"""Schedules that nobody wrote down: chunks and decodes in one batch, rectangles, packs, copies, padding, fillers."""

from __future__ import annotations

from random import Random
from typing import get_args

from moeparity.plan.schedule.steps import Copy, Phase, Positions, Schedule, Span, Step

PHASES: tuple[Phase, ...] = get_args(Phase)


def continuous(draw: Random, starts: list[int], length: int, *, shared: int = 0) -> list[Step]:
    """Flat steps: who has arrived goes on by as many tokens as it pleases; spans lie in any order.

    `starts`: where the tokens of each sequence begin. `shared`: how many of its first tokens each later sequence may
    copy from the first.
    """
    at, steps = list(starts), []
    sequences, padding = len(starts), tuple(Span(s, 0, first) for s, first in enumerate(starts) if first)
    while min(at) < length:
        waiting = [s for s in range(sequences) if at[s] < length]
        chosen = draw.sample(waiting, draw.randint(1, len(waiting)))
        copies = []
        for s in chosen:
            if s and at[s] == 0 and shared and at[0] >= shared and draw.random() < 0.7:
                copies.append(Copy(s, 0, shared, 0, 0))
                at[s] = shared
        spans = []
        for s in chosen:
            count = 1 if at[s] > starts[s] and draw.random() < 0.6 else draw.randint(1, length - at[s])
            spans.append(Span(s, at[s], at[s] + count))
            at[s] += count
        steps.append(_flat(draw, tuple(spans), tuple(copies)))
    return [*steps, *([Step(spans=padding, shape="flat", filler=True)] if padding else [])]


def _flat(draw: Random, spans: tuple[Span, ...], copies: tuple[Copy, ...] = ()) -> Step:
    places = range(len(spans))
    scored = None if draw.random() < 0.5 else tuple(place for place in places if draw.random() < 0.7)
    verified = tuple(place for place in places if draw.random() < 0.3) if draw.random() < 0.4 else ()
    return Step(
        spans=spans,
        shape="flat",
        phase=draw.choice(PHASES[1:]),
        padding=draw.choice((0, 0, 1, 3)),
        scored=scored,
        verified=verified,
        copies=copies,
    )


def rectangles(draw: Random, sequences: int, length: int) -> list[Step]:
    """Dense batches of neighbouring sequences, each group with chunks of its own, in turn."""
    groups, first = [], 0
    while first < sequences:
        last = draw.randint(first + 1, sequences)
        edges = sorted({length, *(draw.randint(1, length) for _ in range(draw.randint(0, length)))})
        groups.append([(first, last, a, b) for a, b in zip((0, *edges), edges, strict=False)])
        first = last
    steps = []
    while any(groups):
        first, last, a, b = draw.choice([group for group in groups if group]).pop(0)
        spans = tuple(Span(s, a, b) for s in range(first, last))
        scored = tuple(range(len(spans))) if draw.random() < 0.4 else None
        steps.append(Step(spans=spans, phase=draw.choice(PHASES), scored=scored))
    return steps


def packs(draw: Random, sequences: int, length: int) -> list[Step]:
    """Packs of whole sequences, and what is behind each as a filler."""
    order, steps, rest = draw.sample(range(sequences), sequences), [], []
    while order:
        count = draw.randint(1, len(order))
        spans = tuple(Span(s, 0, draw.randint(1, length)) for s in order[:count])
        order = order[count:]
        steps.append(Step(spans=spans, shape="packed", isolated=draw.random() < 0.5, phase="forward"))
        rest += [Span(span.sequence, span.last, length) for span in spans if span.last < length]
    if rest:
        steps.append(Step(spans=tuple(rest), shape="flat", filler=True))
    return steps


def schedule(seed: int, starts: list[int], length: int) -> Schedule:
    """One of them for as many sequences, the same for the same seed; `starts`: their first real tokens."""
    draw = Random(seed)  # noqa: S311
    sequences, kind = len(starts), draw.choice(("continuous", "served", "shared", "rectangles", "packs"))
    if kind == "packs":
        positions: Positions = draw.choice(("columns", "running"))
        return Schedule(steps=tuple(packs(draw, sequences, length)), positions=positions, name=kind)
    if kind == "rectangles":
        steps = rectangles(draw, sequences, length)
    elif kind == "served":
        steps = continuous(draw, starts, length)
    else:
        shared = draw.randint(1, length - 1) if kind == "shared" else 0
        steps = continuous(draw, [0] * sequences, length, shared=shared)
    return Schedule(steps=tuple(steps), positions=draw.choice(("columns", "tokens")), name=kind)
