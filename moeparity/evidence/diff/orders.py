"""Whether rounding order alone could explain where a difference begins: calls are run again in other orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeparity.evidence.diff.compare import Comparer
from moeparity.evidence.diff.flow import Origin
from moeparity.evidence.diff.key_columns import Part
from moeparity.evidence.diff.report import DiffVerdict, LegalOrders
from moeparity.evidence.diff.rerun.calls import LARGEST, Calls, as_rows
from moeparity.evidence.diff.rerun.way import NotDrawnError, Way
from moeparity.evidence.envelope.band import Band, band
from moeparity.numerics.bits import int_view, same_bits

DRAWS = 8
"""Orders that are drawn of each side."""
_FOREIGN = "what {} recorded is none of the orders of its own calls: it adds in another precision or form than they say"


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A side's recorded rows [n, C], what its calls give at these in other orders, and in fp64."""

    own_value: Tensor
    draws: tuple[Tensor, ...]
    exact: Tensor

    def around(self, recorded: Tensor) -> Band:
        """The other side's rows in the band of these."""
        return band(self.own_value, recorded[: len(self.own_value)], self.draws, len(self.own_value))

    @property
    def is_own(self) -> bool:
        """Whether the recorded value is one of these orders itself."""
        return band(self.draws[0], self.own_value, self.draws[1:], len(self.own_value)).inside


def legal_orders(comparer: Comparer, origin: Origin) -> LegalOrders:
    """The verdict on where a difference begins; `not told` where it can't be drawn or was not kept whole."""
    if origin.kind != "op":
        return _not_told("no ops of it were recorded" if origin.kind == "module" else "it is no op")
    for name, ops in (("A", origin.ops_a), ("B", origin.ops_b)):
        if not ops:
            return _not_told(f"{name} computes nothing there, and hands on a value that it had before")
    differing = _differing(comparer, origin)
    if isinstance(differing, str):
        return _not_told(differing)
    calls = Calls(comparer.a, origin.ops_a, origin.pair.a), Calls(comparer.b, origin.ops_b, origin.pair.b)
    values = tuple(part.of(_recorded(call)) for call, part in zip(calls, differing, strict=True))
    drawn_a, drawn_b = (_drawn(*each) for each in zip(calls, differing, values, strict=True))
    return _judged(drawn_a, drawn_b, (values[0], values[1]), sums=any(call.adds_up for call in calls))


def orders_behind(comparer: Comparer, origin: Origin, handed: Mapping[int, Tensor]) -> tuple[LegalOrders, bool]:
    """The verdict on a value whose inputs differ already: B's value is compared with what A's calls give of what B
    read. Also whether nothing had to be drawn for it. `handed`: by ids of A, what B has in their place.
    """
    differing = _differing(comparer, origin)
    if isinstance(differing, str) or origin.unread or not origin.ops_a:
        return _not_told(differing if isinstance(differing, str) else "whole inputs were not kept"), True
    calls = Calls(comparer.a, origin.ops_a, origin.pair.a)
    on_others = replace(calls, handed=handed)
    ours = differing[0].of(_recorded(calls))
    theirs = differing[1].of(_recorded(Calls(comparer.b, (), origin.pair.b)))
    try:
        if same_bits(_rerun(on_others, Way(0, native=True), differing[0]), theirs):
            return LegalOrders(verdict="inside"), True
    except (NotDrawnError, RuntimeError):
        pass
    drawn, drawn_alone = _draws(on_others, differing[0], theirs), _drawn(calls, differing[0], ours)
    if isinstance(drawn, str) or isinstance(drawn_alone, str):
        return _not_told((drawn if isinstance(drawn, str) else str(drawn_alone)).format("A")), False
    around = band(drawn.draws[0], drawn.own_value, drawn.draws[1:], len(drawn.own_value))
    if around.inside:
        return LegalOrders(verdict="inside"), False
    verdict = _legal_orders("outside", drawn_alone, (ours, theirs), around, sums=calls.adds_up)
    return replace(verdict, error_b=_error(drawn.own_value, drawn.exact)), False


def _recorded(calls: Calls) -> Tensor:
    whole = calls.side.tensor(calls.value)
    assert whole is not None, "rows differ of values that were kept whole"
    return as_rows(whole)


def _rerun(calls: Calls, way: Way, part: Part) -> Tensor:
    """What the calls give in one way, at a part; perhaps only at the first of its rows. Raises NotDrawnError."""
    return part.columns_of(calls.rows(way, part.rows))


def _differing(comparer: Comparer, origin: Origin) -> tuple[Part, Part] | str:
    """The rows of tokens that differ, of A and of B; a reason where that can't be said."""
    values = comparer.a.tensor(origin.pair.a), comparer.b.tensor(origin.pair.b)
    if values[0] is None or values[1] is None:
        return "whole values were not kept"
    ours, theirs = as_rows(values[0]), as_rows(values[1])
    if not ours.is_floating_point() or not theirs.is_floating_point():
        return "what it gives are no floating-point numbers"
    if max(ours.numel(), theirs.numel()) > LARGEST:
        return "the values are too large to run again here"
    places = comparer.places(origin.pair.a, origin.pair.b, len(ours), len(theirs))
    if isinstance(places, str) or ours.shape[-1] != theirs.shape[-1]:
        return comparer.differing_by_keys(origin.pair.a, origin.pair.b) or "the outputs have other shapes"
    left, right, tokens = places
    dtype = torch.promote_types(ours.dtype, theirs.dtype)
    differs = (int_view(ours[left].to(dtype)) != int_view(theirs[right].to(dtype))).any(-1)
    if tokens is not None:
        differs = differs & (tokens >= 0)
    if not bool(differs.any()):
        return "whole values that differ were not kept"
    return Part(left[differs]), Part(right[differs])


def _drawn(calls: Calls, part: Part, recorded: Tensor) -> _Drawn | str:
    """What a side's calls give at a part in several orders; the value that the side recorded is one of them. If
    that can't be told, a reason, with {} for the side's name.
    """
    drawn = _draws(calls, part, recorded)
    return drawn if isinstance(drawn, str) or drawn.is_own else _FOREIGN


def _draws(calls: Calls, part: Part, recorded: Tensor) -> _Drawn | str:
    try:
        written = calls.written()
        exact = _rerun(calls, Way(None), part)
        draws = tuple(_rerun(calls, Way(seed, written), part).to(recorded.dtype) for seed in range(DRAWS))
    except NotDrawnError as error:
        return str(error)
    except RuntimeError as error:
        return f"torch can't run {{}}'s calls again here: {str(error).splitlines()[0][:80]}"
    return _Drawn(recorded[: len(exact)], draws, exact)


def _judged(drawn_a: _Drawn | str, drawn_b: _Drawn | str, values: tuple[Tensor, Tensor], *, sums: bool) -> LegalOrders:
    """Compares B's value with A's orders, and A's with B's. If A's orders can't be drawn, B's can only say `inside`. If
    B's can't be drawn, A's decide alone.
    """
    if isinstance(drawn_a, str):
        if not isinstance(drawn_b, str) and drawn_b.around(values[0]).inside:
            return _legal_orders("inside", drawn_b, values, drawn_b.around(values[0]), sums=sums)
        return _not_told(drawn_a.format("A"))
    first = drawn_a.around(values[1])
    second = None if isinstance(drawn_b, str) else drawn_b.around(values[0])
    if not first.inside:
        # Whose orders are wider rounds more.
        reason = "A lies within B's orders, B outside A's: B is less precise" if second and second.inside else ""
        return _legal_orders("outside", drawn_a, values, first, sums=sums, reason=reason)
    verdict: DiffVerdict = "inside" if second is None or second.inside else "inside one way"
    return _legal_orders(verdict, drawn_a, values, first, sums=sums)


def _legal_orders(
    verdict: DiffVerdict,
    drawn: _Drawn,
    values: tuple[Tensor, Tensor],
    band_around: Band,
    *,
    sums: bool,
    reason: str = "",
) -> LegalOrders:
    ours, theirs = (value[: len(drawn.exact)] for value in values)
    return LegalOrders(
        verdict=verdict, reason=reason, sums=sums, elements=band_around.elements, differing=band_around.differing,
        outside=band_around.outside, furthest=band_around.furthest, error_a=_error(ours, drawn.exact),
        error_b=_error(theirs, drawn.exact),
    )  # fmt: skip


def _error(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.float64).tiny))


def _not_told(reason: str) -> LegalOrders:
    return LegalOrders(verdict="not told", reason=reason)
