"""Two fingerprints of weights held to each other: which tensors, and which of their rows, have other bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from moeparity.evidence.census.follow import followed
from moeparity.evidence.census.outcome import Derived
from moeparity.evidence.weights.fingerprint_files import Weights
from moeparity.evidence.weights.part import matrix
from moeparity.evidence.weights.quantised import OTHER_BITS, Held, explain_codes, weights_as_codes
from moeparity.evidence.weights.report import Finding, Sort, WeightsReport, WeightsSide
from moeparity.evidence.weights.whole import Whole, wholes
from moeparity.output.words import few

_SPANS = 6
"""Runs of rows that a finding names."""


def compare(a: Weights, b: Weights | None) -> WeightsReport:
    """Every tensor of both sides; or one side alone, held to itself: parts that are doubled, replicas that differ. Of a
    weight that two checkpoints have in different formats, codes are held to numbers.
    """
    as_codes = _as_codes(a, b)
    ours, theirs = wholes(a, as_codes.names), None if b is None else wholes(b, as_codes.names)
    findings = [
        finding for side, tensors in (("A", ours), ("B", theirs or {})) for finding in _of_itself(side, tensors)
    ]
    sides = (_side(a), None if b is None else _side(b))
    if b is None or theirs is None:
        findings += [finding for whole in ours.values() for finding in _incomplete("A", whole)]
        return WeightsReport(a=sides[0], b=None, compared=0, equal=0, findings=tuple(findings), constant=(), aside=())
    common = [name for name in ours if name in theirs]
    totals = _by_total(ours)
    pairs = {name: list(_pair(ours[name], theirs[name], totals)) for name in common}
    if a.checkpoint is not None and b.checkpoint is not None:
        explain_codes(a.checkpoint, b.checkpoint, pairs)
    one_sided, aside = _one_sided(ours, theirs, (a, b))
    undecided = {name for name, differences in pairs.items() if any(f.sort != "differs" for f in differences)}
    matrices = (name for name in common if ours[name].constant and theirs[name].constant and len(ours[name].shape) > 1)
    return WeightsReport(
        a=sides[0],
        b=sides[1],
        compared=len(common) - len(undecided),
        equal=sum(not differences for differences in pairs.values()),
        rounded=as_codes.rounded,
        findings=(*as_codes.findings, *(f for of in pairs.values() for f in of), *one_sided, *findings),
        constant=tuple(name for name in matrices if not pairs[name]),
        aside=(*aside, *_ill_scaled(as_codes)),
        derived=tuple(_derived(a, b)),
    )


def _as_codes(a: Weights, b: Weights | None) -> Held:
    """What is told of codes held to numbers: nothing of programs, or of weights that are multiplied out."""
    if b is None or a.checkpoint is None or b.checkpoint is None or a.by_rank[0].cast:
        return Held()
    return weights_as_codes(a.checkpoint, b.checkpoint)


def _ill_scaled(as_codes: Held) -> Iterator[str]:
    """What is said of weights whose codes are the nearest under scales that do not reach just to the largest code."""
    if as_codes.ill_scaled:
        yield (
            f"{few(as_codes.ill_scaled, 4)}: codes are the nearest, under scales that are not of the largest numbers "
            "there. They are of earlier weights (a stale amax: `moeparity doctor --previous`), shared with other "
            "weights, or of a writer that clips or searches"
        )


def _derived(a: Weights, b: Weights) -> Iterator[Derived]:
    """What became of tensors made of weights, by the censuses of those ranks that both sides have; what is true of
    several ranks once.
    """
    befores = {weights.rank: weights.census for weights in a.by_rank if weights.census is not None}
    ranks: dict[Derived, list[int]] = {}
    for weights in b.by_rank:
        before = befores.get(weights.rank)
        if before is not None and weights.census is not None:
            for derived in followed(before, weights.census):
                ranks.setdefault(derived, []).append(weights.rank)
    for derived, holders in ranks.items():
        where = "" if len(holders) == len(b.by_rank) else f" on ranks {few([str(rank) for rank in holders], 8)}"
        yield replace(derived, says=derived.says + where)


def _side(weights: Weights) -> WeightsSide:
    tensors = len({part.tensor for ranked in weights.by_rank for part in ranked.parts})
    first = weights.by_rank[0]
    return WeightsSide(
        source=weights.source, checkpoint=weights.checkpoint is not None, ranks=first.ranks,
        missing_ranks=weights.missing, cast=first.cast, tensors=tensors,
        formats=() if weights.checkpoint is None else weights.checkpoint.formats,
    )  # fmt: skip


def _of_itself(side: str, tensors: Mapping[str, Whole]) -> Iterator[Finding]:
    for name, whole in tensors.items():
        for words in whole.replicas:
            yield Finding(tensor=name, sort="replicas", side=side, rows="", says=words)
        for words in whole.doubled:
            says = f"{words}: the same part was loaded twice, or the layout says of a replica that it is cut"
            yield Finding(tensor=name, sort="doubled", side=side, rows="", says=says)
        for words in whole.overlap:
            yield Finding(tensor=name, sort="overlap", side=side, rows="", says=words)


def _pair(a: Whole, b: Whole, totals: Mapping[tuple[int, tuple[int, ...]], list[str]]) -> Iterator[Finding]:
    """What differs in a tensor of both; nothing where all bits are equal."""
    if a.shape != b.shape:
        yield Finding(tensor=a.name, sort="shape", side="", rows="", says=f"{list(a.shape)} in A, {list(b.shape)} in B")
        return
    if a.dtype != b.dtype:
        says = f"{a.dtype} in A, {b.dtype} in B: bits of two dtypes can't be compared. Take both in one dtype"
        yield Finding(tensor=a.name, sort="dtype", side="", rows="", says=says)
        return
    compared_rows = a.whole_rows & b.whole_rows
    # Equal sums of the same columns are equal bits also where no row is whole.
    apart = (a.rows != b.rows) & compared_rows
    if bool(apart.any()):
        says = _instead(a, b, apart, totals)
        rows = "" if bool(apart.all()) else spans(apart)
        yield Finding(tensor=a.name, sort="differs", side="", rows=rows, says=says)
    if not bool(compared_rows.all()):
        for side, whole in (("A", a), ("B", b)):
            yield from _incomplete(side, whole)


def _incomplete(side: str, whole: Whole) -> Iterator[Finding]:
    lacking = ~whole.whole_rows
    if bool(lacking.any()):
        rows = "" if bool(lacking.all()) else spans(lacking)
        says = "no rank of which there is a file holds all columns of these rows"
        yield Finding(tensor=whole.name, sort="incomplete", side=side, rows=rows, says=says)


def _instead(a: Whole, b: Whole, apart: torch.Tensor, totals: Mapping[tuple[int, tuple[int, ...]], list[str]]) -> str:
    """What stands in B in place of what A has, as far as A has it anywhere."""
    if b.constant and not a.constant:
        return "one number only in B"
    if a.constant and not b.constant:
        return "one number only in A"
    others = totals.get((b.total, b.shape), []) if bool(b.whole_rows.all()) else []
    if len(others) == 1:
        return f"B holds A's {others[0]}"
    where = {row: number for number, row in enumerate(a.rows.tolist())}
    places = [where.get(row) for row in b.rows[apart].tolist()]
    if matrix(a.shape)[-1] > 1 and len(where) == len(a.rows) and None not in places:
        moved = torch.zeros_like(apart)
        moved[torch.tensor([place for place in places if place is not None])] = True
        return f"B has A's rows {spans(moved)} there"
    return OTHER_BITS


def _by_total(tensors: Mapping[str, Whole]) -> dict[tuple[int, tuple[int, ...]], list[str]]:
    names: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    for name, whole in tensors.items():
        if not whole.constant and bool(whole.whole_rows.all()):
            names.setdefault((whole.total, whole.shape), []).append(name)
    return names


def _one_sided(
    ours: Mapping[str, Whole], theirs: Mapping[str, Whole], sides: tuple[Weights, Weights]
) -> tuple[list[Finding], list[str]]:
    """Tensors that one side has: findings, and what is none."""
    findings, aside = [], []
    for side, tensors, facing, lacking in (("A", ours, theirs, sides[1]), ("B", theirs, ours, sides[0])):
        totals = _by_total({name: whole for name, whole in tensors.items() if name in facing})
        for name, whole in tensors.items():
            if name in facing:
                continue
            twins = totals.get((whole.total, whole.shape), [])
            if twins:
                aside.append(f"{name}, in {side} alone, holds the bits of {twins[0]}")
            elif whole.kind == "computed":
                aside.append(f"{name}, in {side} alone, is a buffer that no checkpoint keeps")
            elif lacking.missing:
                ranks = f"{len(lacking.missing)} of its ranks have no file"
                findings.append(
                    Finding(tensor=name, sort="incomplete", side="B" if side == "A" else "A", rows="", says=ranks)
                )
            else:
                sort: Sort = "missing" if side == "A" else "only in B"
                says = f"a {whole.kind} that {'B' if side == 'A' else 'A'} has not"
                findings.append(Finding(tensor=name, sort=sort, side="", rows="", says=says))
    return findings, aside


def spans(rows: torch.Tensor) -> str:
    """`0:8, 12`: the places of a bool vector that hold, in runs."""
    edges = torch.diff(
        rows.to(torch.int8), prepend=torch.zeros(1, dtype=torch.int8), append=torch.zeros(1, dtype=torch.int8)
    )
    begins, ends = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    words = [str(low) if high == low + 1 else f"{low}:{high}" for low, high in zip(begins, ends, strict=True)]
    more = f" and {len(words) - _SPANS} more runs" if len(words) > _SPANS else ""
    return ", ".join(words[:_SPANS]) + more
