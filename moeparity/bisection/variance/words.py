"""What compositions changed, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.schedule.words import CANNOT_MATTER
from moeparity.bisection.variance.report import Comparison, FirstOp, SideVariance
from moeparity.output.words import enumerated, percent

Varying = tuple[Comparison, FirstOp]
"""A comparison in which something varies, and the first op that does."""


def reading(sides: Sequence[SideVariance]) -> Iterator[str]:
    """What each side's compositions say."""
    for side in sides:
        whose = enumerated([f"the {name}" for name in side.sides])
        yield from _varies(side, whose) if side.varies else _same(side, whose)
    calls = dict.fromkeys(op for side in sides if side.varies for op in side.seeing if ":" in op)
    if calls:
        verb = "is a user's function" if len(calls) == 1 else "are users' functions"
        yield (
            f"{enumerated(list(calls))} {verb}: whether the same call gives the same bits twice, which is not asked "
            "here, `moeparity bisect` says."
        )
    if not all(group.is_one_model for side in sides for group in side.groups):
        yield (
            "Packs without a mask, or whose positions run on, hand each sequence something of its neighbours: these "
            "are other models in other compositions, and what varies there is no rounding."
        )
    alike = (group for side in sides for group in side.groups if group.is_one_model)
    if any(comparison.ratio.off for group in alike for comparison in group.comparisons):
        yield "What helps: the same composition before and in the training step, or a batch-invariant profile."


def _same(side: SideVariance, whose: str) -> Iterator[str]:
    if not side.seeing and all(group.is_one_model for group in side.groups):
        yield f"{CANNOT_MATTER} here: no op of {whose} goes by which tokens are computed together."
        return
    yield (
        f"In {whose} every op gives every token the same bits in all of these compositions, on this machine. "
        f"{_clause(side)}. Other sizes, tokens or processors may still give others."
    )


def _varies(side: SideVariance, whose: str) -> Iterator[str]:
    varying = _varying([side])
    firsts = list(dict.fromkeys(first_op.node for _, first_op in varying))
    yield (
        f"In {whose} {len(varying)} of {len(side.comparisons)} compositions {'gives' if len(varying) == 1 else 'give'} "
        f"some tokens other bits than the one they are held against, first at {enumerated(firsts)}. {_clause(side)}."
    )
    comparison, _ = worst(varying)
    yield _of_ratio(comparison)


def _of_ratio(comparison: Comparison) -> str:
    ratio = comparison.ratio
    if not ratio.off:
        return (
            "What varies is rounded away again: no scored token has another log-probability, every ratio is exactly 1."
        )
    return (
        f"{comparison.composition}: exp(current - previous) is not 1 at {ratio.off} of {ratio.scored} scored tokens "
        f"({percent(ratio.off / ratio.scored)}), although the policy is the same."
    )


def _clause(side: SideVariance) -> str:
    ops = list(side.seeing)
    if not ops:
        return "No op goes by which tokens are computed together"
    return f"{enumerated(ops)} {'goes' if len(ops) == 1 else 'go'} by which tokens are computed together"


def headline(sides: Sequence[SideVariance]) -> str:
    """What varies first, and how many ratios are off: the figure of the status line."""
    varying = _varying(sides)
    if not varying:
        count = sum(1 + len(group.comparisons) for side in sides for group in side.groups)
        return f"nothing varies in {count} compositions"
    comparison, first_op = worst(varying)
    ratio = comparison.ratio
    return (
        f"{first_op.node} varies first in {comparison.composition}, ratio != 1 at {ratio.off} of {ratio.scored} scored "
        "tokens"
    )


def worst(varying: Sequence[Varying]) -> Varying:
    """The comparison with the most ratios that are off, of several the one that goes farthest."""
    return max(varying, key=lambda pair: (pair[0].ratio.off, pair[0].distance.mean_abs_delta))


def _varying(sides: Sequence[SideVariance]) -> list[Varying]:
    comparisons = (comparison for side in sides for comparison in side.comparisons)
    return [(comparison, comparison.first_op) for comparison in comparisons if comparison.first_op is not None]


def where(first_op: FirstOp) -> str:
    """`192 of 192 in 8 sequences, from token 0 of sequence 0 on`."""
    sequences = f"{first_op.sequences} sequence{'s' * (first_op.sequences != 1)}"
    return (
        f"{first_op.tokens} of {first_op.computed} in {sequences}, first token {first_op.token} of sequence "
        f"{first_op.sequence}"
    )
