"""The legal-order envelope: whether another order of the same sums could give what the candidate's op gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.bisection.envelope.legal_orders import Call, orders_of
from moeparity.bisection.kernels import Settings, called
from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import SHADOW, Trials
from moeparity.engine.lockstep import NodeView
from moeparity.engine.values import assemble
from moeparity.numerics.bits import int_view
from moeparity.ops.declaration import RefusedError
from moeparity.plan.sides import REFERENCE

AT_ONCE = 1 << 18
"""Output elements whose draws are compared together."""
TOKENS = 512
"""So many tokens of the first sequences are drawn for; where an op needs whole sequences, at least one."""
STEPS = 1 << 27
"""Products that a draw of a GEMM adds up at most: it then takes fewer tokens, since orders written out are slow."""
SLACK = 2
"""Elements outside that are no evidence, and how many times more of them a value may have than a draw does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A value against one side's own value and N legal orders of that side's numerics, all on the same inputs.

    An element's band goes from the least to the greatest of the side's value and the draws'.

    draws, tokens, elements: how many were drawn and compared.
    differing: elements whose bits differ between the side's value and the other one; outside: of these, how many lie
        outside their band; furthest: how far at most, in ulps of the coarser dtype at the row's greatest magnitude.
    own_outside: by draw, how many elements lie outside the band of the side's value and the *other* draws: what a
        legal order looks like.
    varying: elements whose band is wider than one value.
    """

    draws: int
    tokens: int
    elements: int
    differing: int = 0
    outside: int = 0
    furthest: float = 0.0
    own_outside: tuple[int, ...] = ()
    varying: int = 0

    @property
    def inside(self) -> bool:
        """No more elements outside than a draw has among the others, up to `SLACK`."""
        return self.outside <= SLACK * max(self.own_outside, default=0) + SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Enveloped:
    """A node at which the candidate's numerics give other bits on the reference's inputs.

    reference: the candidate's value in the band of the reference's numerics. candidate: the reference's value in the
    band of the candidate's, looked at where the first holds. not_drawn: why there is no band; both are then None.
    """

    reference: Band | None = None
    candidate: Band | None = None
    not_drawn: str | None = None


def band(own: Tensor, other: Tensor, draws: Sequence[Tensor], tokens: int) -> Band:
    """`other` in the band of `own` and the draws: all of one shape [..., C], any float dtypes, the draws in `own`'s."""
    found = Band(draws=len(draws), tokens=tokens, elements=own.numel(), own_outside=(0,) * len(draws))
    rows = max(1, AT_ONCE // own.shape[-1])
    flat = (torch.split(x.reshape(-1, own.shape[-1]), rows) for x in (own, other, *draws))
    for first, second, *rest in zip(*flat, strict=True):
        part = _part(first, second, torch.stack(rest))
        found = Band(
            draws=found.draws,
            tokens=tokens,
            elements=found.elements,
            differing=found.differing + part.differing,
            outside=found.outside + part.outside,
            furthest=max(found.furthest, part.furthest),
            own_outside=tuple(a + b for a, b in zip(found.own_outside, part.own_outside, strict=True)),
            varying=found.varying + part.varying,
        )
    return found


def _part(own: Tensor, other: Tensor, draws: Tensor) -> Band:
    """own, other [n, C], draws [N, n, C]."""
    ordered = torch.cat([own.unsqueeze(0), draws]).double().sort(0).values
    low, high = ordered[0], ordered[-1]
    wide = torch.promote_types(own.dtype, other.dtype)
    differs, value = int_view(own.to(wide)) != int_view(other.to(wide)), other.double()
    # A NaN lies in no band.
    outside = differs & ~((low <= value) & (value <= high))
    drawn = draws.double()
    alone = (drawn < ordered[1]) | (drawn > ordered[-2])
    return Band(
        draws=len(draws),
        tokens=0,
        elements=own.numel(),
        differing=int(differs.sum()),
        outside=int(outside.sum()),
        furthest=_furthest(value, low, high, outside, max(own.dtype, other.dtype, key=lambda d: torch.finfo(d).eps)),
        own_outside=tuple(alone.flatten(1).sum(-1).tolist()),
        varying=int((low < high).sum()),
    )


def _furthest(value: Tensor, low: Tensor, high: Tensor, outside: Tensor, dtype: torch.dtype) -> float:
    """The greatest distance from the band, in ulps of `dtype` at the greatest magnitude of the row: an ulp of an
    element that cancelled to nearly 0 would say nothing. Infinite where a value or its band is not finite.
    """
    if not bool(outside.any()):
        return 0.0
    greatest = torch.maximum(low.abs(), high.abs()).nan_to_num(0.0, posinf=0.0)
    _, exponent = torch.frexp(greatest.amax(-1, keepdim=True))
    ulp = torch.ldexp(torch.full_like(low, torch.finfo(dtype).eps), (exponent - 1).expand_as(low))
    far = torch.maximum(low - value, value - high) / ulp
    return float(far[outside].nan_to_num(math.inf).max())


@dataclass(slots=True, kw_only=True)
class Envelope:
    """Draws orders at every node where the candidate's numerics, on the reference's inputs, give other bits.

    Only the first wave's first sequences, of `length` tokens. walkers: the reference, and the shadow with the
    candidate's numerics; sides: how the kernels of both are called.
    """

    walkers: tuple[str, str]
    sides: tuple[Settings, Settings]
    draws: int
    length: int
    found: dict[str, Enveloped] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.wave[0] or view.regions or not view.ran(*self.walkers):
            return
        ours, theirs = (view.output_ids(walker) for walker in self.walkers)
        # Behind a node's own ports come the roundings that single consumers are handed.
        ports = range(len(view.node.outputs))
        floats = [i for i in ports if view.outputs[self.walkers[0]][i][0].tensor.is_floating_point()]
        if ours != theirs and floats:
            found = self._enveloped(view, floats[0])
            if found is not None:
                self.found[view.node.name] = found

    @property
    def result(self) -> dict[str, Enveloped]:
        """By node, how the sides' values lie in each other's bands."""
        return self.found

    def _enveloped(self, view: NodeView, port: int) -> Enveloped | None:
        sequences, tokens = self._taken(view)
        values = [assemble(view.outputs[walker][port], view.wave)[:sequences, :tokens] for walker in self.walkers]
        if values[0].shape != values[1].shape:
            return Enveloped(not_drawn="one side holds partial sums")
        first = self._band(view, 0, values, (sequences, tokens))
        if not isinstance(first, Band):
            return None if first is None else Enveloped(not_drawn=first)
        if not first.differing:
            return None
        second = self._band(view, 1, values[::-1], (sequences, tokens)) if first.inside else None
        return Enveloped(reference=first, candidate=second if isinstance(second, Band) else None)

    def _band(
        self, view: NodeView, side: int, values: Sequence[Tensor], taken: tuple[int, int | None]
    ) -> Band | str | None:
        """The other side's value in the band of this one; a reason where there is none, None without a sum."""
        sequences, tokens = taken
        blocks = view.inputs[self.walkers[side]]
        given = [None if b is None else assemble(b, view.wave)[:sequences, :tokens] for b in blocks]
        how = self.sides[side]
        draw = orders_of(Call(node=view.node, inputs=given, weights=how.weights(view.node), at=how.at(view.node)))
        if draw is None or isinstance(draw, str):
            return draw
        try:
            drawn = [draw(seed) for seed in range(self.draws)]
        except RefusedError as error:
            return f"{error.attribute}: {error.reason}"
        own, other = values
        return band(own, other, drawn, sequences * (self.length if tokens is None else tokens))

    def _taken(self, view: NodeView) -> tuple[int, int | None]:
        """So many of the first sequences, and of each so many of its first tokens (None: all of them)."""
        first = view.outputs[self.walkers[0]][0][0]
        # An op that reads other tokens, or a value with another axis before that of the tokens.
        if view.node.op.mixes_tokens or view.node.op.reduces or first.partials > 1:
            return min(view.wave[1], max(1, TOKENS // self.length)), None
        afford = TOKENS
        if view.node.op.gemm:
            products = sum(math.prod(ref.shape) for ref in view.node.weights.values())
            slots = first.tensor.shape[2] if view.node.op.slot_order else 1
            afford = min(afford, max(1, STEPS // (products * slots)))
        return (1, afford) if afford < self.length else (min(view.wave[1], afford // self.length), None)


STATE = (Enveloped, Band)


def observer(plan: Plan, trials: Trials) -> Envelope | None:
    """Draws legal orders where the candidate's own numerics differ; None where the recipe asks for none."""
    if not plan.recipe.envelope or not plan.attribution:
        return None
    return Envelope(
        walkers=(REFERENCE, SHADOW),
        sides=(called(plan, plan.reference), called(plan, plan.candidate)),
        draws=plan.recipe.envelope,
        length=plan.tokens.input_ids.shape[1],
    )
