"""Which differences are legal choices, that is, values that an engine may take without computing another model."""

from __future__ import annotations

from typing import Final

from moeparity.bisection.envelope.measure import BANDS
from moeparity.bisection.envelope.show import INSIDE, envelope_verdict
from moeparity.bisection.observed import Observed
from moeparity.plan.difference import Difference
from moeparity.plan.toggles import SEMANTICS, Toggle

FUNCTION: Final = "implementation"


def is_legal(toggle: Toggle, observed: Observed) -> bool:
    """Whether a toggle changes legal choices only: roundings, orders, forms and the like.

    A choice of kind `semantics` is not legal, since it computes another model. A user's function is legal only if the
    envelope was drawn and its values lie inside.
    """
    return toggle.kind != SEMANTICS and all(_is_legal(member, observed) for member in toggle.members)


def _is_legal(difference: Difference, observed: Observed) -> bool:
    if difference.kind != FUNCTION:
        return difference.kind != SEMANTICS
    bands = observed.of_watch(BANDS) or {}
    band = bands.get(difference.node.name)
    if band is None:
        return False
    return envelope_verdict(*(None if b is None else b.inside for b in (band.reference, band.candidate))) == INSIDE
