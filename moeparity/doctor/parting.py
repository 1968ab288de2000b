"""What would tell apart hypotheses that explain the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.report import A_FEW
from moeparity.doctor.standing import Standing

_MOST = 2


def parting(case: Case, stand: Standing) -> tuple[str, ...]:
    """For the first few hypotheses that the data do not tell from the best one, a sentence that names the datum that
    would. None where they are more than a few: to tell two of these apart settles nothing.
    """
    alike = [each for each in (*stand.rivals, *stand.alike) if each.party is not None]
    if len(alike) > A_FEW:
        return ()
    return tuple(dict.fromkeys(_datum(case, stand.first, rival) for rival in alike if stand.first.party))[:_MOST]


def _datum(case: Case, first: Tried, rival: Tried) -> str:
    apart = f"{first.hypothesis.name} from {rival.hypothesis.name}"
    if first.party != rival.party:
        return (
            f"a third program's log-probabilities of these tokens from the same weights tell {apart}: the side that "
            "agrees with it is right"
        )
    if first.hypothesis.reading is not None or rival.hypothesis.reading is not None:
        return f"the token ids and position ids that the {first.party}'s model was given tell {apart}"
    node = next(_nodes(case, first, rival), None)
    if node is not None:
        return f"the {first.party}'s values at {node} tell {apart} (`moeparity capture`, docs/traces.md)"
    more = _sequences(case, first, rival)
    return f"some {more:,} sequences like these tell {apart}" if more else f"nothing that a log holds tells {apart}"


def _nodes(case: Case, first: Tried, rival: Tried) -> Iterator[str]:
    """The nodes at which one of two hypotheses has another fault than the rival, in the order of the graph."""
    faults = [{(p.node, p.fault.name, p.values) for p in each.hypothesis.plants} for each in (first, rival)]
    names = {node for node, _, _ in faults[0] ^ faults[1]}
    yield from (node.name for node in case.bench.model.graph.nodes if node.name in names)


def _sequences(case: Case, first: Tried, rival: Tried) -> int:
    """How many sequences would make the advantage of the first sure, if they are like these; 0 if there is none."""
    gain = case.difference.advantage(first.simulated, rival.simulated)
    if not gain.estimate > 0 or not math.isfinite(gain.low):
        return 0
    count = int(torch.unique(case.difference.sequence).numel())
    return math.ceil(count * ((gain.estimate - gain.low) / gain.estimate) ** 2)
