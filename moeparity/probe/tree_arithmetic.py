"""Finds the arithmetic of a known tree: to what additions round, which products are contracted, what -0 becomes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.probe.express import Evidence
from moeparity.probe.masks import Masks
from moeparity.probe.shape import Shape, members, parents

WIDEST = 60
_TIE = 2.0**-12
CANDIDATES = (8, 9, 11, 12, 24, 25, 53, 54)
"""Bits of the known dtypes, and one more each, which a compensated sum shows."""


def arithmetic(masks: Masks, shape: Shape) -> Evidence:
    """The arithmetic of the sums behind `masks`, whose tree is `shape`."""
    return Evidence(bits=_bits(masks, shape), contracted=_contracted_leaves(masks, shape), positive=_positive(masks))


def _positive(masks: Masks) -> bool:
    out = masks.sums(torch.full((1, masks.n), -0.0, dtype=masks.dtype))
    return not bool(out.signbit().any())


def _bits(masks: Masks, shape: Shape) -> tuple[int | None, ...]:
    """The bits that each merge keeps: with 2^e and 1 on two of its children and -2^e on a leaf outside, 1 is left if it
    keeps e + 1 bits.
    """
    _, lowest = members(shape)
    taken_by = parents(shape)
    triples: dict[int, tuple[int, int, int]] = {}
    for k, merge in enumerate(shape.merges):
        above = taken_by[shape.leaves + k]
        if above >= 0:
            outside = next(value for value in shape.merges[above] if value != shape.leaves + k)
            triples[k] = (lowest[merge[0]], lowest[merge[1]], lowest[outside])
    if not triples:
        return (None,) * len(shape.merges)
    sample = list(triples)[:: max(1, len(triples) // 3)][:3]
    usual = max(_precision(masks, [triples[k] for k in sample], range(1, 1 + _range(masks))))
    precision = dict.fromkeys(triples, usual)
    visible = _visible(masks, [(*triple, e) for triple in triples.values() for e in (usual - 1, usual)])
    pairs = zip(triples, visible[::2], visible[1::2], strict=True)
    unusual = [k for k, below, at in pairs if not (below and not at)]
    bits = _precision(masks, [triples[k] for k in unusual], CANDIDATES)
    precision |= dict(zip(unusual, bits, strict=True))
    return tuple(precision.get(k) for k in range(len(shape.merges)))


def _range(masks: Masks) -> int:
    return min(WIDEST, masks.high - masks.low - 1)


def _precision(masks: Masks, triples: Sequence[tuple[int, int, int]], exponents: Sequence[int]) -> list[int]:
    """For each triple, the first of `exponents` at which the 1 is lost; if there is none, the exponent after the
    last.
    """
    usable = [e for e in exponents if e <= _range(masks)]
    visible = iter(_visible(masks, [(*triple, e) for triple in triples for e in usable]))
    bits = []
    for _ in triples:
        flags = [next(visible) for _ in usable]
        bits.append(next((e for e, flag in zip(usable, flags, strict=True) if not flag), usable[-1] + 1))
    return bits


def _visible(masks: Masks, probes: Sequence[tuple[int, int, int, int]]) -> list[bool]:
    flags: list[bool] = []
    for first in range(0, len(probes), size := max(len(masks.at), (1 << 21) // masks.n)):
        batch = probes[first : first + size]
        rows = torch.zeros(len(batch), masks.n, dtype=masks.dtype)
        large, unit, outside, exponent = (torch.tensor(column) for column in zip(*batch, strict=True))
        every = torch.arange(len(batch))
        powers = torch.ldexp(torch.full((len(batch),), masks.unit, dtype=torch.float64), exponent).to(masks.dtype)
        rows[every, large] = powers
        rows[every, unit] = masks.unit
        rows[every, outside] = -powers
        flags += (masks.sums(rows) != 0).tolist()
    return flags


def _contracted_leaves(masks: Masks, shape: Shape) -> frozenset[int] | None:
    """Leaves whose products (1 + 2^-12)^2 keep all their 25 bits when -(1 + 2^-12) is added to them.

    This can be seen only if products are otherwise rounded to fp32.
    """
    if not masks.of.products or masks.dtype != torch.float32 or masks.output != torch.float32:
        return None
    lowest = members(shape)[1]
    pairs = []
    for merge in shape.merges:
        for value in merge:
            if value < shape.leaves:
                sibling = next(child for child in merge if child != value)
                pairs.append((value, lowest[sibling]))
    rows = torch.zeros(len(pairs), masks.n, dtype=masks.dtype)
    leaves, sibling = torch.tensor(pairs).t()
    every = torch.arange(len(pairs))
    rows[every, leaves] = 1 + _TIE
    rows[every, sibling] = -1.0
    out = masks.sums(rows, torch.full((masks.n,), 1 + _TIE, dtype=masks.dtype))
    exact = out.double() / masks.scale == _TIE + _TIE * _TIE
    return frozenset(leaf for (leaf, _), is_exact in zip(pairs, exact.tolist(), strict=True) if is_exact)
