"""What would tell hypotheses apart that explain alike."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.standing import Standing

_MOST = 2


def parting(case: Case, stand: Standing) -> tuple[str, ...]:
    """A sentence for each of the first hypotheses that the data do not tell from the best one: the datum that would."""
    alike = [each for each in (*stand.rivals, *stand.alike) if each.party is not None]
    return tuple(dict.fromkeys(_datum(case, stand.first, other) for other in alike if stand.first.party))[:_MOST]


def _datum(case: Case, first: Tried, other: Tried) -> str:
    apart = f"{first.hypothesis.name} from {other.hypothesis.name}"
    if first.party != other.party:
        return (
            f"a third program's log-probabilities of these tokens from the same weights tell {apart}: the side that "
            "agrees with it is right"
        )
    if first.hypothesis.reading is not None or other.hypothesis.reading is not None:
        return f"the token ids and position ids that the {first.party}'s model was given tell {apart}"
    node = next(_nodes(case, first, other), None)
    if node is not None:
        return f"the {first.party}'s values at {node} tell {apart} (`moeparity capture`, docs/traces.md)"
    more = _sequences(case, first, other)
    return f"some {more:,} sequences like these tell {apart}" if more else f"nothing that a log holds tells {apart}"


def _nodes(case: Case, first: Tried, other: Tried) -> Iterator[str]:
    """The nodes at which one of two hypotheses has another fault than the other, in the order of the graph."""
    faults = [{(p.node, p.fault.name, p.values) for p in each.hypothesis.plants} for each in (first, other)]
    names = {node for node, _, _ in faults[0] ^ faults[1]}
    yield from (node.name for node in case.bench.model.graph.nodes if node.name in names)


def _sequences(case: Case, first: Tried, other: Tried) -> int:
    """How many sequences would make the advantage of the first sure, if they are like these; 0 if there is none."""
    gain = case.difference.advantage(first.simulated, other.simulated)
    if not gain.estimate > 0 or not math.isfinite(gain.low):
        return 0
    count = int(torch.unique(case.difference.sequence).numel())
    return math.ceil(count * ((gain.estimate - gain.low) / gain.estimate) ** 2)
