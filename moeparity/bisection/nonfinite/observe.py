"""The first node of each side at which a value is NaN or infinite, as values go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trials
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Name
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE

Side = Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Values of one node that are not finite; fields as in `report.FirstNonfinite`."""

    node: Node
    nan: int
    infinite: int
    sequences: int
    tokens: int
    sequence: int
    position: int
    expert: int | None


@dataclass(slots=True)
class FirstOccurrences:
    """By side, and by whether tokens are padding, the first node in the order of the graph with such values.

    Segments, and nodes inside them, come in that order in every wave, but all nodes of a segment come before its next
    wave: `order` are the names of all nodes. Tokens that are not real in `attention_mask` [B, T] bool are padding.
    """

    sides: Sequence[Side]
    order: Sequence[str]
    attention_mask: Tensor
    first: dict[tuple[Side, bool], Occurrence] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        ports = _suspects(view, self.sides)
        if not any(ports.values()):
            return
        real = self.attention_mask[slice(*view.wave)]
        kinds = [(padding, tokens) for padding, tokens in ((False, real), (True, ~real)) if bool(tokens.any())]
        for side, of_side in ports.items():
            new = [(padding, tokens) for padding, tokens in kinds if not self._is_known(side, padding, view.node)]
            if new and of_side:
                self._look(view, side, of_side, new)

    @property
    def result(self) -> dict[tuple[Side, bool], Occurrence]:
        """By side and padding; what has no such values is not there."""
        return self.first

    def part(self, rows: slice) -> dict[tuple[Side, bool], Occurrence]:
        """What was seen, of the sequences `rows`, for another to join."""
        return self.first

    def join(self, part: dict[tuple[Side, bool], Occurrence], rows: slice) -> None:
        """Take over what another saw of later waves, the sequences `rows`."""
        for (side, padding), further in part.items():
            if not self._is_known(side, padding, further.node):
                self._add((side, padding), further)

    def _is_known(self, side: Side, padding: bool, node: Node) -> bool:
        """Whether an earlier node has some."""
        occurrence = self.first.get((side, padding))
        return occurrence is not None and self.order.index(occurrence.node.name) < self.order.index(node.name)

    def _look(self, view: NodeView, side: Side, ports: Sequence[int], kinds: Sequence[tuple[bool, Tensor]]) -> None:
        value = torch.cat([view.by_token(side, port).double() for port in ports], -1)
        for padding, tokens in kinds:
            faulty = ~value.isfinite() & tokens.unsqueeze(-1)
            if bool(faulty.any()):
                nan = int((value.isnan() & faulty).sum())
                self._add((side, padding), _occurrence(view, side, faulty, nan))

    def _add(self, key: tuple[Side, bool], further: Occurrence) -> None:
        earlier = self.first.get(key)
        if earlier is None or earlier.node.name != further.node.name:
            self.first[key] = further
            return
        # A later wave of the same node: the first token stays.
        self.first[key] = replace(
            earlier,
            nan=earlier.nan + further.nan,
            infinite=earlier.infinite + further.infinite,
            sequences=earlier.sequences + further.sequences,
            tokens=earlier.tokens + further.tokens,
        )


def _suspects(view: NodeView, sides: Sequence[Side]) -> dict[Side, list[int]]:
    """By side that ran the node, its ports that may hold something that is not finite; asked once for one value."""
    by_value: dict[int, list[int]] = {}
    for side in filter(view.ran, sides):
        outputs = view.outputs[side]
        if id(outputs) not in by_value:
            ports = [port for port in range(len(outputs)) if _may_hold(view.tensor(side, port))]
            # What single consumers are handed is the same value rounded otherwise: it counts where the stored one has
            # none.
            by_value[id(outputs)] = [port for port in ports if port < len(view.node.outputs)] or ports
    return {side: by_value[id(view.outputs[side])] for side in filter(view.ran, sides)}


def _may_hold(value: Tensor) -> bool:
    """Whether a value may hold something that is not finite: its sum says so without a mask as large as the value."""
    return value.is_floating_point() and not bool(value.sum().isfinite())


def _occurrence(view: NodeView, side: Side, faulty: Tensor, nan: int) -> Occurrence:
    """What `faulty` [B, T, N] bool marks in a wave."""
    tokens = faulty.any(-1)
    row, position = (int(index) for index in tokens.nonzero()[0])
    return Occurrence(
        node=view.node,
        nan=nan,
        infinite=int(faulty.sum()) - nan,
        sequences=int(tokens.any(-1).sum()),
        tokens=int(tokens.sum()),
        sequence=view.wave[0] + row,
        position=position,
        expert=_expert(view, side, row, position),
    )


def _expert(view: NodeView, side: Side, row: int, position: int) -> int | None:
    """The expert of the first slot of a token whose row is not finite; None where the node makes no rows of experts."""
    node, region = view.node, view.regions.get(side)
    if not node.op.slot_order or "ids" not in node.op.integers:
        return None
    ids = node.inputs[node.op.inputs.index("ids")]
    names = node.inputs if region is None else region.inputs
    if ids not in names:
        return None
    blocks = view.inputs[side][names.index(ids)]
    assert blocks is not None, "ids are always read"
    # Rows [slots, hidden], of partial sums one such part for each rank.
    rows = view.by_token(side)[row, position].view(-1, *view.outputs[side][0][0].tensor.shape[-2:])
    slot = int((~rows.isfinite()).any(-1).any(0).nonzero()[0])
    return int(assemble(blocks, view.batch)[row, position, slot])


STATE = (Occurrence,)


def observer(plan: Plan, trials: Trials) -> FirstOccurrences:
    """Looks at both sides."""
    _, mask, _ = plan.tokens_on_device
    return FirstOccurrences((REFERENCE, CANDIDATE), [node.name for node in plan.model.graph.nodes], mask)
