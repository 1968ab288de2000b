"""torch CPU's sum, as in aten/src/ATen/native/cpu/SumKernel.cpp of torch 2.13 (`multi_row_sum`, `row_sum`)."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.numerics.orders.types import AnyTree, Level, Sum

_LEVELS = 4

Values = Sequence[AnyTree]


def cascade(values: Values, level: Level) -> AnyTree:
    """A contiguous row: vector i of `lanes` values goes to accumulator i mod `accumulators`, then the tail, then the
    lanes.

    With `halves` a vector is the sum of two, as 16-bit loads are widened. A row shorter than one load is taken value by
    value. Outer dimensions are lanes=1: with one accumulator if the kernel takes columns in groups, else with four.
    """
    lanes, accumulators = level.numbers
    load = 2 * lanes if "halves" in level.words else lanes
    if len(values) < load:
        return _row(values, accumulators, level)
    full = len(values) // load * load
    if load > lanes:
        vectors = [
            [_plain(level, values[i + lane], values[i + lanes + lane]) for lane in range(lanes)]
            for i in range(0, full, load)
        ]
    else:
        vectors = [list(values[i : i + lanes]) for i in range(0, full, lanes)]
    by_lane = [_row([vector[lane] for vector in vectors], accumulators, level) for lane in range(lanes)]
    tail = values[full:]
    return by_lane[0] if lanes == 1 and not tail else _plain(level, *tail, *by_lane, zero=True)


def _row(values: Values, accumulators: int, level: Level) -> AnyTree:
    """Value i goes to accumulator i mod `accumulators`, an incomplete last group to the first; then their sum."""
    rows = len(values) // accumulators
    full = rows * accumulators
    sums = [_multi_row(values[i:full:accumulators], level) for i in range(accumulators)]
    tail = values[full:]
    if tail:
        sums[0] = _plain(level, *tail, zero=True) if sums[0] is None else _plain(level, sums[0], *tail)
    # An empty accumulator adds +0 to a sum that is never -0.
    totals = [total for total in sums if total is not None]
    return totals[0] if len(totals) == 1 else _plain(level, *totals)


def _multi_row(values: Values, level: Level) -> AnyTree:
    """Four levels of accumulators: a full run of `step` values goes up one level, `step` such runs one more."""
    if not values:
        return None
    power = max(4, (len(values) - 1).bit_length() // _LEVELS)
    step = 1 << power
    sums: list[list[AnyTree]] = [[] for _ in range(_LEVELS)]
    position = 0
    while position + step <= len(values):
        sums[0] += values[position : position + step]
        position += step
        for j in range(1, _LEVELS):
            sums[j].append(_plain(level, *sums[j - 1], zero=j == 1))
            sums[j - 1] = []
            if position & ((step - 1) << (j * power)):
                break
    sums[0] += values[position:]
    totals = [_plain(level, *children, zero=j == 0) for j, children in enumerate(sums) if children]
    return totals[0] if len(totals) == 1 else _plain(level, *totals)


def _plain(level: Level, *children: AnyTree, zero: bool = False) -> AnyTree:
    if len(children) == 1 and not zero:
        return children[0]
    return Sum(children=children, accumulate=level.accumulate, zero=zero) if zero or level.accumulate else children
