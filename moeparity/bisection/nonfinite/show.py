"""NaN and infinities in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.nonfinite.data import FirstNonfinite
from moeparity.output.blocks import Group, bullets, group
from moeparity.output.words import enumerated, quantity


def nonfinite_reading(
    first: Sequence[FirstNonfinite],
    made_by: Sequence[str],
    ended_by: Sequence[str],
    scored: int,
    shape: tuple[int, ...],
) -> Iterator[str]:
    """What is not finite, where it starts, and what follows from it.

    `first`, `made_by` and `ended_by` as in `Nonfinite`; `scored`: how many tokens have logits that are not finite;
    `shape`: number of sequences and of tokens in each.
    """
    yield from (_place(entry, shape) for entry in first)
    sides, real = {entry.side for entry in first}, [entry for entry in first if not entry.padding]
    if len(sides) == 1:
        clean_side = "candidate" if sides == {"reference"} else "reference"
        yield f"The {clean_side} has neither NaN nor infinities at any node."
    if len(real) > 1:
        yield _on_both_sides(*real)
    if not scored:
        yield "No scored token has logits that are not finite."
        return
    yield (
        f"{quantity(scored, 'scored token')} {'has' if scored == 1 else 'have'} logits that are not finite. A mean "
        "with NaN in it is NaN and has no parts: no shares are taken of it, and errors count only values that are "
        "finite on both sides."
    )
    if made_by:
        yield f"Alone in the reference, {' or '.join(made_by)} makes scored tokens that are not finite."
    if ended_by:
        yield f"With {' or '.join(ended_by)} alone restored, no scored token is left that is not finite."


def _place(entry: FirstNonfinite, shape: tuple[int, ...]) -> str:
    sequences, length = shape
    expert = "" if entry.expert is None else f", expert {entry.expert}"
    return (
        f"The {entry.side} first has {_kinds(entry)}{' in padding' * entry.padding} at {entry.node} ({entry.op})"
        f"{expert}, sequence {entry.sequence}, position {entry.position} (both from 0): there it is "
        f"{quantity(entry.nan + entry.infinite, 'value')} in {entry.tokens} of {sequences * length} tokens, in "
        f"{entry.sequences} of {sequences} sequences."
    )


def _kinds(entry: FirstNonfinite) -> str:
    if entry.nan and entry.infinite:
        return "NaN and infinities"
    return "NaN" if entry.nan else "infinities"


def _on_both_sides(first: FirstNonfinite, second: FirstNonfinite) -> str:
    """What it means that both sides have NaN or infinities."""
    where = [(entry.node, entry.sequence, entry.position, entry.expert) for entry in (first, second)]
    if where[0] == where[1]:
        return "Both sides have it there: no difference between them is needed for it."
    if first.node == second.node:
        return f"Both sides have some from {first.node} on, first at other tokens."
    return f"Both sides have some, from other nodes on: {enumerated([first.node, second.node])}."


def show(report: ReportData) -> Iterator[Group]:
    """The group about where NaN and infinities start, and what makes them."""
    if report.nonfinite is not None:
        yield group("NaN and infinities", bullets(report.nonfinite.reading))
