"""What a user asks of a log: sets of metrics, ways of grouping, a gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.metrics.declaration import By, Metric
from moeparity.metrics.gating import expected, gated, refusal, refusal_of_bound
from moeparity.metrics.registry import find, of_sets
from moeparity.metrics.verdict import Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest:
    """What a user asks of a log: sets of metrics besides `common`, ways of grouping, single metrics, a gate, and
    whether a page will draw figures.
    """

    sets: Sequence[str] = ()
    by: Sequence[str] = ()
    metrics: Sequence[str] = ()
    gate: Gate | None = None
    plots: bool = False

    def ways(self) -> tuple[By, ...]:
        """The ways of grouping. Raises MoeparityError for an unknown one."""
        for name in self.by:
            if name not in get_args(By):
                raise MoeparityError(
                    f"--by: {name!r} is no way of grouping tokens; expected one of {listed(get_args(By))}."
                    f"{did_you_mean(name, get_args(By))}"
                )
        return tuple(way for way in get_args(By) if way in self.by)

    def selection(self) -> tuple[Metric, ...]:
        """The metrics to compute. Raises MoeparityError for an unknown name, or a gate on a metric that is not a
        mean.
        """
        further = [find(name, "metrics") for name in self.metrics]
        if self.gate is not None:
            bounded = find(self.gate.metric, "gate")
            if why := refusal(bounded):
                raise MoeparityError(
                    f"gate: {why}; {expected(gated())}. Bound its estimate under `expect: {{metrics: ...}}` instead."
                )
            if why := refusal_of_bound(bounded, self.gate.below):
                raise MoeparityError(f"gate: {why}.")
            further.append(bounded)
        return tuple(dict.fromkeys([*of_sets(self.sets), *further]))


def read_gate(text: str) -> Gate:
    """Reads a gate such as `k3<1e-3`. Raises MoeparityError."""
    match = re.fullmatch(r"\s*([\w./-]+)\s*<\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*", text)
    try:
        below = float(match[2]) if match else 0.0
    except ValueError:
        below = 0.0
    if match is None or not below > 0:
        raise MoeparityError(
            f"--gate: {text!r} is no gate; expected a metric, `<` and a number above 0, as in 'k3<1e-3'."
        )
    return Gate(metric=match[1], below=below)
