"""What is said of values that listed choices leave: how far they lie, in which tokens, which orders were sought."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.errors import counted
from moeparity.evidence.explain.report import Extent, Left, OrderSearch
from moeparity.output.words import percent


def order_lines(search: OrderSearch) -> Iterator[str]:
    """What came of searching for orders that no file lists."""
    cost = f"{counted(search.tried, 'order')} tried in {search.seconds:.1f} s"
    for answer in search.found:
        yield (
            f"  order: {answer.place}={answer.order}, which no file lists: found on {counted(answer.fitted, 'row')}, "
            f"verified on {answer.others} others, where {counted(answer.deciding, 'sum')} would have other bits "
            f"without it; {cost}"
        )
    for answer in search.unsure:
        yield (
            f"  order: {answer.place}={answer.order} gives these bits, but of the {answer.others} rows on which it was "
            f"not found only {counted(answer.deciding, 'sum')} decide it: too few to tell it from a wrong value, so it "
            "is not taken"
        )
    if not search.tried and search.is_whole:
        yield "  orders that no file lists: none tried: no sum has one to choose, or no row is left to judge it by"
    elif not search.found:
        end = "all that are known" if search.is_whole else "its share of the budget is spent"
        yield f"  orders that no file lists: {cost}, {end}; none gives these bits"
        yield "  no single choice explains it: two or more that no file lists may act at once, or a value is wrong"


def remainder(rest: Left) -> str:
    """How far the rest lies, and whether a legal order explains it."""
    far = "not finite" if math.isinf(rest.furthest) else f"up to {rest.furthest:.0f} ulp"
    text = f"{percent(rest.differing)} of elements, {far}"
    if rest.outside is None:
        return f"{text}; no legal orders can be drawn: {rest.not_drawn}"
    outside = f"{rest.outside} of {rest.compared} elements lie outside every legal order drawn"
    verdict = "no legal order explains them" if rest.beyond_orders else "as many as a legal order has there"
    return f"{text}; {outside} ({verdict})"


def extent_lines(extent: Extent) -> Iterator[str]:
    """Of which tokens the rest is, and to which expert all of them went."""
    place = extent.first
    of = f"request {place.request}" if place.request else f"sequence {place.sequence}"
    where = f"{of}, position {place.position}"
    where = f"forward {place.forward}, {where}" if place.forward else where
    many = extent.differing > 1
    tokens = f"{counted(extent.differing, 'token')} of {extent.tokens}"
    yield f"  in {tokens}, {'the first ' if many else ''}at {where}{_born(extent.not_finite)}"
    if not extent.experts:
        return
    experts = " and ".join(f"expert {tokens_of.expert}" for tokens_of in extent.experts)
    goes = "all of these tokens went" if many else "this token went"
    equal = [
        f"{tokens_of.tokens - tokens_of.differing} to expert {tokens_of.expert}"
        for tokens_of in extent.experts
        if tokens_of.tokens > tokens_of.differing
    ]
    besides = f"; so did tokens with equal bits, {' and '.join(equal)}" if equal else ", no token with equal bits did"
    yield f"  {goes} to {experts}{besides}"


def _born(count: int) -> str:
    elements = f"{counted(count, 'element')} {'is' if count == 1 else 'are'}"
    return f"; {elements} NaN or infinite where finite ones are computed" if count else ""
