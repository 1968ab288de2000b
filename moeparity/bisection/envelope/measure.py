"""The envelope, from the legal orders that were drawn in the first pass at every node with a local error."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.bisection.context import Context
from moeparity.bisection.divergence.observe import RECORDS, NodeRecord
from moeparity.bisection.envelope.data import Envelope, EnvelopedNode, OrderBand, Verdict
from moeparity.bisection.envelope.observe import BANDS, NodeBands
from moeparity.bisection.envelope.show import envelope_reading, envelope_verdict
from moeparity.evidence.envelope.band import Band


def measure(of: Context) -> Envelope | None:
    """The envelope; None if the recipe asks for none."""
    bands, records = of.observed.of_watch(BANDS), of.observed.of_watch(RECORDS) or {}
    return None if bands is None else _envelope(of.plan.recipe.envelope, bands, records)


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


def _verdict(bands: NodeBands) -> Verdict:
    positions = (None if band is None else band.inside for band in (bands.reference, bands.candidate))
    return envelope_verdict(*positions)


def _band(band: Band | None) -> OrderBand | None:
    if band is None:
        return None
    return OrderBand(
        elements=band.elements,
        differing=band.differing,
        outside=band.outside,
        furthest=band.furthest,
        draws_outside=max(band.own_outside, default=0),
        varying=band.varying,
    )
