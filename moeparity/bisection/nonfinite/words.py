"""Where NaN and infinities come from, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.nonfinite.report import FirstNonfinite
from moeparity.output.words import enumerated, quantity


def nonfinite_reading(
    first: Sequence[FirstNonfinite],
    made_by: Sequence[str],
    ended_by: Sequence[str],
    scored: int,
    shape: tuple[int, ...],
) -> Iterator[str]:
    """What is not finite, where it starts, and what follows of it.

    `first`, `made_by` and `ended_by` as in `Nonfinite`; `scored` tokens have logits that are not finite; `shape` are
    the sequences and the tokens of each.
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
        f"{quantity(scored, 'scored token')} {'is' if scored == 1 else 'are'} without a number for it. A mean with NaN "
        "in it is NaN and has no parts: no shares are taken of it, and errors are those of the values that are finite "
        "on both sides."
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
    """What it means that both sides have some."""
    where = [(entry.node, entry.sequence, entry.position, entry.expert) for entry in (first, second)]
    if where[0] == where[1]:
        return "Both sides have it there: no difference between them is needed for it."
    if first.node == second.node:
        return f"Both sides have some from {first.node} on, first at other tokens."
    return f"Both sides have some, from other nodes on: {enumerated([first.node, second.node])}."
