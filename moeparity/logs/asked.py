"""What is wanted of a log: sets of metrics, ways of grouping, a gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.metrics.declaration import By, Metric
from moeparity.metrics.registry import find, of_sets
from moeparity.metrics.verdict import Gate

_KINDS = {"of totals": "formula in totals"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is wanted of a log: sets of metrics beside `common`, ways of grouping, single metrics, a gate."""

    sets: Sequence[str] = ()
    by: Sequence[str] = ()
    metrics: Sequence[str] = ()
    gate: Gate | None = None

    def ways(self) -> tuple[By, ...]:
        """The ways of grouping. Raises MoeparityError for an unknown one."""
        for each in self.by:
            if each not in get_args(By):
                raise MoeparityError(
                    f"--by: {each!r} is no way of grouping tokens; expected one of {listed(get_args(By))}."
                    f"{did_you_mean(each, get_args(By))}"
                )
        return tuple(way for way in get_args(By) if way in self.by)

    def chosen(self) -> tuple[Metric, ...]:
        """The metrics to compute. Raises MoeparityError for an unknown name, or a gate on what is no mean."""
        more = [find(each, "metrics") for each in self.metrics]
        if self.gate is not None:
            gated = find(self.gate.metric, "gate")
            if not gated.reduce.has_interval:
                kind = _KINDS.get(gated.reduce.kind, gated.reduce.kind)
                raise MoeparityError(
                    f"gate: {gated.name} is a {kind}, of which there is no interval over sequences; "
                    "expected a mean, such as k3. Bound its estimate under `expect: {metrics: ...}` instead."
                )
            more.append(gated)
        return tuple(dict.fromkeys([*of_sets(self.sets), *more]))


def read_gate(text: str) -> Gate:
    """`k3<1e-3` as a gate. Raises MoeparityError."""
    found = re.fullmatch(r"\s*([\w./-]+)\s*<\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*", text)
    try:
        below = float(found[2]) if found else 0.0
    except ValueError:
        below = 0.0
    if found is None or not below > 0:
        raise MoeparityError(
            f"--gate: {text!r} is no gate; expected a metric, `<` and a number above 0, as in 'k3<1e-3'."
        )
    return Gate(metric=found[1], below=below)
