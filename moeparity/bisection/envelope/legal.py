"""Which differences are legal choices, any of which an engine may take: all but another model and users' functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moeparity.bisection.envelope.observe import NodeBands
from moeparity.bisection.envelope.words import INSIDE, envelope_verdict
from moeparity.bisection.observed import Observed
from moeparity.plan.difference import Difference
from moeparity.plan.toggles import SEMANTICS, Toggle

FUNCTION: Final = "implementation"


def is_legal(toggle: Toggle, observed: Observed) -> bool:
    """Whether all that a toggle moves are roundings, orders, forms and the like.

    A choice of class `semantics` computes another model. A user's function is legal only where the envelope of legal
    orders was drawn and its values lie inside.
    """
    return toggle.kind != SEMANTICS and all(_is_legal(member, observed) for member in toggle.members)


def _is_legal(difference: Difference, observed: Observed) -> bool:
    if difference.kind != FUNCTION:
        return difference.kind != SEMANTICS
    bands: Mapping[str, NodeBands] = observed.sections.get("envelope") or {}
    band = bands.get(difference.node.name)
    if band is None:
        return False
    return envelope_verdict(*(None if b is None else b.inside for b in (band.reference, band.candidate))) == INSIDE
