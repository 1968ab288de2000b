"""The legal-order envelope, from what the first pass drew at every node with a local error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.divergence.observe import NodeRecord
from moeparity.bisection.envelope.observe import Band, Enveloped
from moeparity.bisection.envelope.report import Envelope, EnvelopedNode, OrderBand
from moeparity.bisection.envelope.words import Placed, Verdict, envelope_reading, envelope_verdict
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The envelope; None for a recipe that asks for none."""
    bands: Mapping[str, Enveloped] | None = observed.sections.get("envelope")
    records: Mapping[str, NodeRecord] = observed.sections["divergence"]
    return {"envelope": None if bands is None else _envelope(plan.recipe.envelope, bands, records)}


def _envelope(draws: int, bands: Mapping[str, Enveloped], records: Mapping[str, NodeRecord]) -> Envelope:
    nodes = tuple(
        _node(name, records[name].node.op.name, band, root=records[name].root_sequences > 0)
        for name, band in bands.items()
    )
    placed = [Placed(node=node.node, verdict=_verdict(bands[node.node]), root=node.root) for node in nodes]
    return Envelope(draws=draws, nodes=nodes, reading=tuple(envelope_reading(placed, draws)))


def _node(name: str, op: str, found: Enveloped, *, root: bool) -> EnvelopedNode:
    return EnvelopedNode(
        node=name,
        op=op,
        root=root,
        verdict=_verdict(found),
        tokens=0 if found.reference is None else found.reference.tokens,
        reference=_band(found.reference),
        candidate=_band(found.candidate),
        not_drawn=found.not_drawn,
    )


def _verdict(found: Enveloped) -> Verdict:
    inside = (None if band is None else band.inside for band in (found.reference, found.candidate))
    return envelope_verdict(*inside)


def _band(found: Band | None) -> OrderBand | None:
    if found is None:
        return None
    return OrderBand(
        elements=found.elements,
        differing=found.differing,
        outside=found.outside,
        furthest=found.furthest,
        draws_outside=max(found.own_outside, default=0),
        varying=found.varying,
    )
