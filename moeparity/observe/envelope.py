"""The legal-order envelope: could another order of the same sums give what the candidate's op gives?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moeparity.engine.lockstep import NodeView
from moeparity.graph.graph import Node
from moeparity.numerics.bits import int_view
from moeparity.observe.legal_orders import Call, orders_of
from moeparity.ops.declaration import RefusedError

AT_ONCE = 1 << 18
"""Output elements whose draws are compared together."""
TOKENS = 512
"""About so many tokens of the first sequences are drawn for; at least one sequence."""
STEPS = 1 << 27
"""Products that a draw of a GEMM adds up at most: it then takes fewer tokens, since orders written out are slow."""
_GEMMS = ("linear", "gate", "lm_head", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One node's outputs against what N legal orders of the reference's own numerics make of the reference's inputs.

    An element's band goes from the least to the greatest of the reference's value and the draws'.

    draws, tokens, elements: how many were drawn and compared.
    differing: elements whose bits differ between the reference and the candidate's numerics on the same inputs.
    outside: of these, how many lie outside their band; max_ulp: how far, in ulps of the coarser dtype of both.
    own_outside: by draw, how many elements lie outside the band of the reference and the *other* draws: what an order
        that is legal looks like.
    varying: elements whose band is wider than one value.
    not_drawn: why there is no band; all counts of draws are then 0.
    """

    draws: int = 0
    tokens: int = 0
    elements: int = 0
    differing: int = 0
    outside: int = 0
    max_ulp: int = 0
    own_outside: tuple[int, ...] = ()
    varying: int = 0
    not_drawn: str | None = None


def band(reference: Tensor, candidate: Tensor, draws: Sequence[Tensor]) -> Band:
    """All of one shape, any float dtypes; the draws in the reference's. Values are compared in the widest dtype."""
    found = Band(draws=len(draws), elements=reference.numel(), own_outside=(0,) * len(draws))
    flat = [x.reshape(-1) for x in (reference, candidate, *draws)]
    for parts in zip(*(x.split(AT_ONCE) for x in flat), strict=True):
        found = _joined(found, *_chunk(parts[0], parts[1], torch.stack(parts[2:])))
    return found


def _joined(found: Band, differing: int, outside: int, max_ulp: int, own: Sequence[int], varying: int) -> Band:
    return Band(
        draws=found.draws,
        elements=found.elements,
        differing=found.differing + differing,
        outside=found.outside + outside,
        max_ulp=max(found.max_ulp, max_ulp),
        own_outside=tuple(a + b for a, b in zip(found.own_outside, own, strict=True)),
        varying=found.varying + varying,
    )


def _chunk(reference: Tensor, candidate: Tensor, draws: Tensor) -> tuple[int, int, int, list[int], int]:
    """reference, candidate [n], draws [N, n] -> the counts of a band."""
    legal = torch.cat([reference.unsqueeze(0), draws])
    ordered = legal.double().sort(0).values
    low, high = ordered[0], ordered[-1]
    wide = torch.promote_types(reference.dtype, candidate.dtype)
    differs = int_view(reference.to(wide)) != int_view(candidate.to(wide))
    value = candidate.double()
    # A NaN lies in no band.
    outside = differs & ~((low <= value) & (value <= high))
    drawn = draws.double()
    second_low, second_high = ordered[1], ordered[-2]
    own = ((drawn < second_low) | (drawn > second_high)).sum(-1).tolist()
    far = _ulps(candidate[outside], low[outside], high[outside], reference.dtype)
    return int(differs.sum()), int(outside.sum()), far, own, int((low < high).sum())


def _ulps(values: Tensor, low: Tensor, high: Tensor, own: torch.dtype) -> int:
    """The greatest distance of values from their band, low and high fp64, in ulps of the coarser dtype."""
    if not len(values):
        return 0
    dtype = max(own, values.dtype, key=lambda d: torch.finfo(d).eps)
    near = torch.where(values.double() < low, low, high).to(dtype)
    return int((_line(values.to(dtype)) - _line(near)).abs().max())


def _line(x: Tensor) -> Tensor:
    """Floats on the ordered line of integers: neighbours are 1 apart, -0 and +0 the same."""
    bits = int_view(x.contiguous()).to(torch.int64)
    lowest = torch.iinfo(int_view(x[:0].contiguous()).dtype).min
    return torch.where(bits < 0, lowest - bits, bits)


@dataclass(slots=True)
class Envelope:
    """Draws orders at every node where the candidate's numerics, on the reference's inputs, give other bits.

    Only the first wave's first sequences. settings: node -> what its kernel is given on the reference's side; weights:
    node -> its weights by port, read anew.
    """

    reference: str
    shadow: str
    draws: int
    settings: Callable[[Node], Mapping[str, Any]]
    weights: Callable[[Node], Mapping[str, Tensor]]
    bands: dict[str, Band] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.wave[0] or view.regions or not view.ran(self.reference, self.shadow):
            return
        if view.output_ids(self.reference) == view.output_ids(self.shadow):
            return
        port = next((i for i, b in enumerate(view.outputs[self.reference]) if b[0].tensor.is_floating_point()), None)
        if port is None or port >= len(view.node.outputs):
            return
        call, own, other = self._cut(view, port)
        draw = orders_of(call)
        if draw is None or bool((int_view(own) == int_view(other.to(own.dtype))).all() and own.dtype == other.dtype):
            return
        if isinstance(draw, str):
            self.bands[view.node.name] = Band(not_drawn=draw)
            return
        try:
            found = band(own, other, [draw(seed) for seed in range(self.draws)])
        except RefusedError as error:
            self.bands[view.node.name] = Band(not_drawn=f"{error.attribute}: {error.reason}")
            return
        tokens = call.inputs[0]
        assert tokens is not None
        self.bands[view.node.name] = _with_tokens(found, own.shape[0])

    def _cut(self, view: NodeView, port: int) -> tuple[Call, Tensor, Tensor]:
        raise NotImplementedError
