"""The legal-order envelope, from what the first pass drew at every node with a local error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.divergence.observe import NodeRecord
from moeparity.bisection.envelope.observe import NodeBands
from moeparity.bisection.envelope.report import Envelope, EnvelopedNode, OrderBand, Verdict
from moeparity.bisection.envelope.words import envelope_reading, envelope_verdict
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.evidence.envelope.band import Band


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The envelope; None for a recipe that asks for none."""
    bands: Mapping[str, NodeBands] | None = observed.sections.get("envelope")
    records: Mapping[str, NodeRecord] = observed.sections["divergence"]
    return {"envelope": None if bands is None else _envelope(plan.recipe.envelope, bands, records)}


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
