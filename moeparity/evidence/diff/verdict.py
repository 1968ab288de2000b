"""The verdict on two traces, and its sentences: bits are called equal only where they were compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.errors import counted
from moeparity.evidence.diff.compare import in_shapes
from moeparity.evidence.diff.coverage import place
from moeparity.evidence.diff.flow import ValuePair
from moeparity.evidence.diff.pass_pairs import RunPair
from moeparity.evidence.diff.report import Birth, Coverage, Start, Status
from moeparity.evidence.diff.side import Side
from moeparity.output.words import few

_SHAPES = 3
"""So many values of other shapes stand in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a verdict rests on.

    unmatched: how many tokens of A and of B have no counterpart. masked: how many tokens of the same ids A reads and B
    masks, and the other way round.
    """

    sides: tuple[Side, ...]
    coverage: Coverage
    starts: tuple[Start, ...]
    pairs: tuple[tuple[RunPair, ValuePair], ...]
    births: tuple[Birth, ...]
    ranks: tuple[str, ...]
    scalars: tuple[str, ...]
    raised: tuple[str, ...] = ()
    unmatched: tuple[int, int] = (0, 0)
    masked: tuple[int, int] = (0, 0)


def judge(facts: Facts) -> tuple[Status, str]:
    """The verdict, and why."""
    coverage = facts.coverage
    figure = (
        f"{coverage.differing + coverage.rounded + coverage.apart:,} of {coverage.compared:,} compared values differ"
    )
    if _in_two_dtypes(facts):
        return "inconclusive", (
            f"the programs ran in two dtypes, so that no bits can agree: of {coverage.compared:,} compared values "
            f"{coverage.cast + coverage.rounded:,} are equal once rounded to the narrower"
        )
    if facts.starts:
        return "fail", "; ".join(filter(None, (figure, _masks(facts.masked))))
    if facts.ranks:
        return "fail", "ranks of one trace differ where the layout says that they are equal"
    obstacles = list(_obstacles(facts))
    if obstacles:
        return "inconclusive", "; ".join(obstacles)
    reason = f"equal bits in all {coverage.equal + coverage.padding:,} compared values"
    if coverage.cast:
        reason += f", and equal numbers in {coverage.cast:,} of two dtypes"
    if coverage.padding:
        reason += f", but for rows of padding in {coverage.padding:,}"
    if facts.births:
        reason += f"; both hold {facts.births[0].what}"
    return "pass", reason


def _in_two_dtypes(facts: Facts) -> bool:
    """Whether one program ran in another dtype as a whole, and nothing else was seen to make a difference."""
    coverage = facts.coverage
    alone = all(start.dtypes[0] != start.dtypes[1] for start in facts.starts)
    return bool(facts.starts) and alone and 2 * coverage.of_two_dtypes > coverage.compared


def _obstacles(facts: Facts) -> Iterator[str]:
    """Why equal bits in what was compared do not say that the programs computed the same."""
    coverage = facts.coverage
    if not coverage.compared:
        yield "nothing was compared"
    cut = [side.name for side in facts.sides if not side.contents.whole]
    if cut:
        yield f"{' and '.join(dict.fromkeys(cut))} was cut before its program ended"
    if coverage.uncovered:
        yield f"{counted(coverage.uncovered, 'value')} not compared"
    if all(facts.unmatched):
        # Where one side alone has more, it computed more. Where both have, what is one token may be taken for two.
        yield "; ".join(filter(None, (_without_counterpart(facts.unmatched), _masks(facts.masked))))
    zeros = list(_zeros(facts))
    if zeros:
        yield f"all zero in both, as a capture of what was not yet written: {zeros[0]}"
    if facts.raised:
        yield f"a call that returned in one trace only: {facts.raised[0]}"
    if facts.scalars:
        yield f"arguments differ: {facts.scalars[0]}"


def _masks(masked: tuple[int, int]) -> str:
    """What the attention masks of the two programs differ in, where they were given the same ids."""
    sides = [
        f"{reader} reads {counted(count, 'token')} that {hider} masks"
        for reader, hider, count in (("A", "B", masked[0]), ("B", "A", masked[1]))
        if count
    ]
    return f"the attention mask differs: {' and '.join(sides)}" if sides else ""


def _without_counterpart(unmatched: tuple[int, int]) -> str:
    sides = [f"{counted(n, 'token')} of {side}" for side, n in zip("AB", unmatched, strict=True) if n]
    return f"{' and '.join(sides)} without a counterpart"


def _zeros(facts: Facts) -> Iterator[str]:
    """Modules all of whose outputs are zero on both sides. The ids of a single expert are zero, and so is the sine of
    position 0; these stand beside other outputs that are not.
    """
    for pair, values in facts.pairs:
        call = values.calls[0]
        is_result = call.level == "module" and values.role == "output" and values.comparison.status == "equal"
        if is_result and all(map(pair.a.side.is_zero, call.outputs.values())):
            yield place(call)


def _other_shapes(facts: Facts) -> Iterator[str]:
    """What paired calls give in rows of other widths."""
    for pair, values in facts.pairs:
        pair_values = pair.a.side.value(values.a), pair.b.side.value(values.b)
        if values.role == "output" and pair_values[0].shape[-1:] != pair_values[1].shape[-1:]:
            yield f"output {values.slot} of {place(values.calls[0])}: {in_shapes(*pair_values)}"


def sentences(facts: Facts) -> Iterator[str]:
    """What a reader must know beside the verdict."""
    coverage = facts.coverage
    yield f"Of {counted(coverage.values, 'value')} that calls of A gave, {coverage.compared:,} were compared."
    if coverage.only_a or coverage.only_b:
        yield (
            f"{counted(coverage.only_a, 'call')} of A and {counted(coverage.only_b, 'call')} of B have no partner: "
            "fused, cast or missing. They are judged by what was made of them."
        )
    if any(facts.unmatched):
        yield (
            f"Not compared, {_without_counterpart(facts.unmatched)}: other ids, more or fewer tokens, or a mask or "
            "positions that do not go on where the sequence was."
        )
    for entry in coverage.not_compared:
        yield f"Not compared, {counted(entry.values, 'value')}: {entry.reason} ({entry.example})."
    shapes = list(dict.fromkeys(_other_shapes(facts)))
    if shapes:
        yield f"No bits were compared where rows have other widths: {few(shapes, _SHAPES)}."
    if any(not side.contents.whole for side in facts.sides):
        yield "A trace that was cut says nothing of what came after."
    for birth in facts.births:
        if birth.side == "both":
            yield f"{birth.what} is born at {birth.path} {birth.op} in both traces."
