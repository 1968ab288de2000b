"""Calls users' functions again on the inputs of the pass, and lists those that are not deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.determinism.data import Determinism, NotDeterministic
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.numerics.bits import int_view
from moeparity.plan.sides import SIDES

WAVES = 2
"""At each node, a function is called again on the first micro-batch of this many waves."""
CALLS = 2
"""It is called again this often on each of them. If a function alternates between two results, one of two calls shows
it.
"""


@dataclass(slots=True, kw_only=True)
class Repeats:
    """What further calls of a side's function at one node gave; fields as in `data.NotDeterministic`."""

    call: str
    values: int = 0
    of: int = 0
    calls: int = 0


@dataclass(slots=True)
class CalledAgain(SectionObserver):
    """Calls the users' functions of both sides again, `CALLS` times at each node in each of `WAVES` waves."""

    repeats: dict[tuple[WalkerName, str], Repeats] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        for side in SIDES:
            region = view.regions.get(side)
            if region is None or not view.ran(side):
                continue
            repeats = self.repeats.setdefault((side, view.node.name), Repeats(call=region.call))
            if repeats.calls == WAVES * CALLS:
                continue
            first_call = [blocks[0].tensor for blocks in view.outputs[side][: len(view.node.outputs)]]
            for _ in range(CALLS):
                repeats.calls += 1
                for ours, again in zip(first_call, view.again(side), strict=True):
                    repeats.values += _differing(ours, again)
                    repeats.of += ours.numel()

    @property
    def result(self) -> dict[tuple[WalkerName, str], Repeats]:
        """What further calls gave, by side and node."""
        return self.repeats


def _differing(ours: torch.Tensor, again: torch.Tensor) -> int:
    """How many values have other bits; all of them if shape or dtype differ."""
    if (ours.shape, ours.dtype) != (again.shape, again.dtype):
        return ours.numel()
    return int((int_view(ours) != int_view(again)).sum())


def observer(study: Study, trials: Trials) -> CalledAgain | None:
    """The observer of both sides; None if no user's function runs."""
    return CalledAgain() if study.functions else None


REPEATED: Final[Watch[Mapping[tuple[str, str], Repeats]]] = Watch("determinism", observer, (Repeats,))


def measure(of: Context) -> Determinism:
    """One entry for each side and node."""
    repeats = of.observed.of_watch(REPEATED) or {}
    return Determinism(
        not_deterministic=tuple(
            filled(NotDeterministic, again, side=side, node=node)
            for (side, node), again in repeats.items()
            if again.values
        )
    )


MEASURE = Measure(gives=Determinism, measure=measure, watch=REPEATED)
