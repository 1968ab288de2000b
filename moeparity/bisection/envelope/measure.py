"""Draws legal orders, to see whether another order of the same sums gives the candidate op's value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.divergence.observe import RECORDS, NodeRecord
from moeparity.bisection.envelope.data import Envelope, EnvelopedNode, EnvelopeVerdict, OrderBand
from moeparity.bisection.envelope.show import envelope_reading, envelope_verdict
from moeparity.bisection.kernels import SideKernels, settings_of
from moeparity.bisection.study import Study
from moeparity.bisection.trials import SHADOW, Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.evidence.envelope.band import Band, band
from moeparity.evidence.envelope.legal_orders import Call, extent, orders_of
from moeparity.ops.attribute import RefusedError
from moeparity.plan.schedule.cases import Case
from moeparity.plan.sides import REFERENCE, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBands:
    """The bands at a node where the candidate's numerics give other bits on the reference's inputs.

    reference: the candidate's value in the band of the reference's numerics. candidate: the reference's value in the
    band of the candidate's numerics, looked at if the former lies inside. not_drawn: why there is no band; both are
    then None.
    """

    reference: Band | None = None
    candidate: Band | None = None
    not_drawn: str | None = None


@dataclass(slots=True, kw_only=True)
class LegalOrders(SectionObserver):
    """Draws orders at every node where the candidate's numerics give other bits on the reference's inputs.

    Looks at the first sequences of the first wave only, of `length` tokens. walkers: the reference, and the shadow,
    which has the candidate's numerics. sides: for both, how their kernels are called, by phase.
    """

    walkers: tuple[str, str]
    sides: tuple[Mapping[Case, SideKernels], Mapping[Case, SideKernels]]
    draws: int
    length: int
    nodes: dict[str, NodeBands] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.wave[0] or view.regions or not view.ran(*self.walkers):
            return
        ours, theirs = (view.output_ids(walker) for walker in self.walkers)
        # Ports beyond the node's own outputs are the roundings that single consumers read.
        ports = range(len(view.node.outputs))
        floats = [i for i in ports if view.outputs[self.walkers[0]][i][0].tensor.is_floating_point()]
        if ours != theirs and floats:
            bands = self._node_bands(view, floats[0])
            if bands is not None:
                self.nodes[view.node.name] = bands

    def join(self, part: dict[str, NodeBands], rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.nodes |= part

    @property
    def result(self) -> dict[str, NodeBands]:
        """The bands, by node."""
        return self.nodes

    def _node_bands(self, view: NodeView, port: int) -> NodeBands | None:
        sequences, tokens = self._extent(view)
        values = [assemble(view.outputs[walker][port], view.batch)[:sequences, :tokens] for walker in self.walkers]
        if values[0].shape != values[1].shape:
            is_cut = len({view.outputs[walker][port][0].partials for walker in self.walkers}) > 1
            return NodeBands(not_drawn="one side holds partial sums" if is_cut else "a fault gives it another size")
        reference_band = self._band(view, 0, values, (sequences, tokens))
        if not isinstance(reference_band, Band):
            return None if reference_band is None else NodeBands(not_drawn=reference_band)
        if not reference_band.differing:
            return None
        candidate_band = self._band(view, 1, values[::-1], (sequences, tokens)) if reference_band.inside else None
        return NodeBands(
            reference=reference_band, candidate=candidate_band if isinstance(candidate_band, Band) else None
        )

    def _band(
        self, view: NodeView, side: int, values: Sequence[Tensor], extent: tuple[int, int | None]
    ) -> Band | str | None:
        """The other side's value in this side's band; a str that says why there is no band; None if the node has no
        sum.
        """
        sequences, tokens = extent
        blocks = view.inputs[self.walkers[side]]
        inputs = [None if b is None else assemble(b, view.batch)[:sequences, :tokens] for b in blocks]
        # Each distinct way in which the kernel is called, with the tokens for which it is called so.
        parts: list[tuple[Call, Tensor]] = []
        for phase, of_phase in view.tokens_by_case(self.walkers[side], self.sides[side]).items():
            settings, own_tokens = self.sides[side][phase], of_phase[:sequences, :tokens]
            node = settings.node(view.node)
            if node.edits:
                return "a fault changes what goes into its kernel, or what comes out"
            call = Call(node=node, inputs=inputs, weights=settings.weights(view.node), at=settings.at(view.node))
            same = next((i for i, (earlier, _) in enumerate(parts) if earlier.at == call.at), None)
            if same is not None:
                parts[same] = call, parts[same][1] | own_tokens
            elif bool(own_tokens.any()):
                parts.append((call, own_tokens))
        base, value = values
        draws = _draws(parts, self.draws, base)
        if not isinstance(draws, list):
            return draws
        return band(base, value, draws, sequences * (self.length if tokens is None else tokens))

    def _extent(self, view: NodeView) -> tuple[int, int | None]:
        """How many of the first sequences are drawn for, and how many first tokens of each (None: all)."""
        block = view.outputs[self.walkers[0]][0][0]
        slots = block.tensor.shape[2] if view.node.op.role.slot_order else 1
        return extent(view.node, (view.wave[1], self.length), slots=slots, whole=block.partials == 1)


def _draws(parts: Sequence[tuple[Call, Tensor]], count: int, base: Tensor) -> list[Tensor] | str | None:
    """`count` draws of the node's value. Each token takes its value from the call of its phase.

    Returns a str that says why if there are none, and None if the node has no sum.
    """
    result: list[Tensor] = []
    for call, own_tokens in parts:
        draw = orders_of(call)
        if draw is None or isinstance(draw, str):
            return draw
        try:
            draws = [draw(seed) for seed in range(count)]
        except RefusedError as error:
            return f"{error.attribute}: {error.reason}"
        if len(parts) > 1 and any(x.shape != base.shape or x.dtype != base.dtype for x in draws):
            return "its values have other dtypes by phase"
        mask = own_tokens.to(base.device).view(*own_tokens.shape, *[1] * (base.dim() - own_tokens.dim()))
        result = [torch.where(mask, x, before) for x, before in zip(draws, result, strict=True)] if result else draws
    return result


def observer(study: Study, trials: Trials) -> LegalOrders | None:
    """The observer; None if the recipe asks for no envelope."""
    if not study.recipe.envelope or not study.attribution:
        return None
    return LegalOrders(
        walkers=(REFERENCE, SHADOW),
        sides=(_by_phase(study, study.reference), _by_phase(study, study.candidate)),
        draws=study.recipe.envelope,
        length=study.tokens.input_ids.shape[1],
    )


def _by_phase(study: Study, side: Side) -> Mapping[Case, SideKernels]:
    return {phase: settings_of(study, side, phase) for phase in side.plan.phases}


BANDS: Final[Watch[Mapping[str, NodeBands]]] = Watch("envelope", observer, (NodeBands, Band))


def measure(of: Context) -> Envelope | None:
    """The envelope; None if the recipe asks for none."""
    bands, records = of.observed.of_watch(BANDS), of.observed.of_watch(RECORDS) or {}
    return None if bands is None else _envelope(of.study.recipe.envelope, bands, records)


def _envelope(draws: int, bands: Mapping[str, NodeBands], records: Mapping[str, NodeRecord]) -> Envelope:
    nodes = tuple(
        _node(name, records[name].node.op.name, band, root=records[name].is_root) for name, band in bands.items()
    )
    return Envelope(draws=draws, nodes=nodes, reading=tuple(envelope_reading(nodes, draws)))


def _node(name: str, op: str, bands: NodeBands, *, root: bool) -> EnvelopedNode:
    return EnvelopedNode(
        node=name,
        op=op,
        root=root,
        verdict=_verdict(bands),
        tokens=0 if bands.reference is None else bands.reference.tokens,
        reference=_band(bands.reference),
        candidate=_band(bands.candidate),
        not_drawn=bands.not_drawn,
    )


def _verdict(bands: NodeBands) -> EnvelopeVerdict:
    positions = (None if band is None else band.inside for band in (bands.reference, bands.candidate))
    return envelope_verdict(*positions)


def _band(band: Band | None) -> OrderBand | None:
    return None if band is None else filled(OrderBand, band, draws_outside=max(band.own_outside, default=0))


MEASURE = Measure(gives=Envelope, measure=measure, watch=BANDS)
