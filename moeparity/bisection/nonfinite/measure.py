"""Finds the first node of each side with a NaN or an infinity, and which toggles make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.nonfinite.data import FirstNonfinite, Nonfinite
from moeparity.bisection.nonfinite.show import nonfinite_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.observers import truncates
from moeparity.bisection.study import Study
from moeparity.bisection.trials import TrialKey, Trials, alone, restored
from moeparity.bisection.verdict.data import Verdicts
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(slots=True)
class FirstOccurrences(SectionObserver):
    """The first node with such values, by side and by whether the tokens are padding.

    First means first in the graph. The pass goes through all nodes of a segment before the segment's next wave, so a
    later wave can show an earlier node: `order`, the names of all nodes, decides. Tokens that are False in
    `attention_mask` (bool [B, T]) are padding.
    """

    sides: Sequence[str]
    order: Sequence[str]
    attention_mask: Tensor
    first: dict[tuple[str, bool], FirstNonfinite] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        ports = _suspects(view, self.sides)
        if not any(ports.values()):
            return
        real = self.attention_mask[slice(*view.wave)]
        kinds = [(padding, tokens) for padding, tokens in ((False, real), (True, ~real)) if bool(tokens.any())]
        for side, of_side in ports.items():
            new = [(padding, tokens) for padding, tokens in kinds if not self._is_known(side, padding, view.node.name)]
            if new and of_side:
                self._look(view, side, of_side, new)

    @property
    def result(self) -> dict[tuple[str, bool], FirstNonfinite]:
        """The first occurrences by side and padding; no entry if there is none."""
        return self.first

    def join(self, part: dict[tuple[str, bool], FirstNonfinite], rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for (side, padding), further in part.items():
            if not self._is_known(side, padding, further.node):
                self._add((side, padding), further)

    def _is_known(self, side: str, padding: bool, node: str) -> bool:
        """Whether an earlier node already has one."""
        occurrence = self.first.get((side, padding))
        return occurrence is not None and self.order.index(occurrence.node) < self.order.index(node)

    def _look(self, view: NodeView, side: str, ports: Sequence[int], kinds: Sequence[tuple[bool, Tensor]]) -> None:
        value = torch.cat([view.by_token(side, port).double() for port in ports], -1)
        # Where a side leaves tokens of the vocabulary out, -inf stands for one.
        legal = value.isfinite() | ((value == -torch.inf) & truncates(view, side))
        for padding, tokens in kinds:
            faulty = ~legal & tokens.unsqueeze(-1)
            if bool(faulty.any()):
                nan = int((value.isnan() & faulty).sum())
                self._add((side, padding), _occurrence(view, side, faulty, nan, padding=padding))

    def _add(self, key: tuple[str, bool], further: FirstNonfinite) -> None:
        earlier = self.first.get(key)
        if earlier is None or earlier.node != further.node:
            self.first[key] = further
            return
        # The same node in a later wave: add the counts and keep the first token.
        self.first[key] = replace(
            earlier,
            nan=earlier.nan + further.nan,
            infinite=earlier.infinite + further.infinite,
            sequences=earlier.sequences + further.sequences,
            tokens=earlier.tokens + further.tokens,
        )


def _suspects(view: NodeView, sides: Sequence[str]) -> dict[str, list[int]]:
    """For each side that ran the node, the ports that may hold a value that is not finite; computed once for shared
    values.
    """
    by_value: dict[int, list[int]] = {}
    for side in filter(view.ran, sides):
        outputs = view.outputs[side]
        if id(outputs) not in by_value:
            ports = [port for port in range(len(outputs)) if _may_hold(view.tensor(side, port))]
            # Further ports are the same value rounded for single consumers: they count only if the stored value is
            # finite.
            by_value[id(outputs)] = [port for port in ports if port < len(view.node.outputs)] or ports
    return {side: by_value[id(view.outputs[side])] for side in filter(view.ran, sides)}


def _may_hold(value: Tensor) -> bool:
    """Whether a value may hold something that is not finite, by its sum, which needs no mask as large as the value."""
    return value.is_floating_point() and not bool(value.sum().isfinite())


def _occurrence(view: NodeView, side: str, faulty: Tensor, nan: int, *, padding: bool) -> FirstNonfinite:
    """The occurrence of what `faulty` (bool [B, T, N]) marks in a wave."""
    tokens = faulty.any(-1)
    row, position = (int(index) for index in tokens.nonzero()[0])
    return FirstNonfinite(
        side=side,
        node=view.node.name,
        op=view.node.op.name,
        nan=nan,
        infinite=int(faulty.sum()) - nan,
        sequences=int(tokens.any(-1).sum()),
        tokens=int(tokens.sum()),
        sequence=view.wave[0] + row,
        position=position,
        expert=_expert(view, side, row, position),
        padding=padding,
    )


def _expert(view: NodeView, side: str, row: int, position: int) -> int | None:
    """The expert of a token's first row that is not finite; None if the node does not compute experts' rows."""
    node, region = view.node, view.regions.get(side)
    if not node.op.role.slot_order or "ids" not in node.op.integers:
        return None
    ids = node.inputs[node.op.inputs.index("ids")]
    names = node.inputs if region is None else region.inputs
    if ids not in names:
        return None
    blocks = view.inputs[side][names.index(ids)]
    assert blocks is not None, "ids are always read"
    # Rows are [slots, hidden]; partial sums have such rows for each rank.
    rows = view.by_token(side)[row, position].view(-1, *view.outputs[side][0][0].tensor.shape[-2:])
    slot = int((~rows.isfinite()).any(-1).any(0).nonzero()[0])
    return int(assemble(blocks, view.batch)[row, position, slot])


def observer(study: Study, trials: Trials) -> FirstOccurrences:
    """The observer of both sides."""
    _, mask, _ = study.tokens_on_device
    return FirstOccurrences((REFERENCE, CANDIDATE), [node.name for node in study.model.graph.nodes], mask)


OCCURRENCES: Final[Watch[Mapping[tuple[str, bool], FirstNonfinite]]] = Watch("nonfinite", observer, (FirstNonfinite,))


def measure(of: Context) -> Nonfinite | None:
    """The first values that are not finite; None if every value of both sides is finite."""
    study, occurrences = of.study, of.observed.of_watch(OCCURRENCES)
    if not occurrences:
        return None
    order = [node.name for node in study.model.graph.nodes]
    first = sorted(
        occurrences.values(),
        key=lambda entry: (order.index(entry.node), entry.padding, entry.side != REFERENCE),
    )
    made_by, ended_by = _causes(study, of.observed)
    metrics, tokens = of[Verdicts].metrics, study.tokens.input_ids
    reading = nonfinite_reading(first, made_by, ended_by, metrics.nonfinite_tokens, tuple(tokens.shape))
    return Nonfinite(first=tuple(first), made_by=made_by, ended_by=ended_by, reading=tuple(reading))


def _causes(study: Study, observed: Observed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The toggles that alone make scored tokens that are not finite, and those whose restoring leaves none."""

    def count(key: TrialKey | str) -> int | None:
        """How many scored tokens of a trial are not finite; None if an op refuses the trial."""
        ran = key in observed.logits.walkers
        return int(observed.logits.sums(key).nonfinite.sum()) if ran else None

    if not count(CANDIDATE):
        return (), ()
    whole = study.whole_toggles
    ended_by = tuple(toggle.name for toggle in whole if count(restored(toggle)) == 0)
    occurrences = observed.of_watch(OCCURRENCES) or {}
    if (REFERENCE, False) in occurrences:
        return (), ended_by
    return tuple(toggle.name for toggle in whole if count(alone(toggle))), ended_by


MEASURE = Measure(gives=Nonfinite, measure=measure, needs=(Verdicts,), watch=OCCURRENCES)
