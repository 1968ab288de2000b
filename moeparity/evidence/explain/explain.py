"""Which choices give a node's recorded values bit for bit, and what these values leave undecided."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from moeparity.evidence.explain.inquiry import Inquiry, Memory
from moeparity.evidence.explain.left import left_by
from moeparity.evidence.explain.observation import Observation, region_of
from moeparity.evidence.explain.replaced import Choices, Replaced
from moeparity.evidence.explain.report import Explanation
from moeparity.evidence.explain.tries import NOTHING
from moeparity.evidence.explain.undecided import open_choices
from moeparity.inputs.weights.store import Loaded
from moeparity.plan.bound import BoundGraph

WORK: Final = 16384
"""What may be spent on nodes that were likely computed alike, in calls of small kernels; on one node at most half."""


def explain(
    plan: BoundGraph,
    node: str,
    observations: Sequence[Observation],
    loaded: Loaded,
    memory: Memory | None = None,
    known_nodes: Collection[str] = (),
) -> Explanation:
    """The choices that give the recorded values of a node, from those of `plan` on.

    `loaded` are the weights of its segment. `memory` is shared by searches at nodes that are likely to have been
    computed alike, such as those of all layers. `known_nodes` are those whose values `plan` gives: what they hand on
    was not made otherwise. Raises TraceError where something that its kernels need was not recorded.
    """
    values = set.intersection(*(set(observation.values) for observation in observations))
    region = region_of(plan, node, values)
    unknown = {node_there.name for node_there in plan.graph.nodes}.difference(known_nodes)
    replaced = Replaced.of([member.name for member in region], plan, plan, unknown=unknown)
    inquiry = Inquiry(replaced=replaced, memory=memory or Memory(work=WORK))
    inquiry.kernels.loaded = loaded
    samples = [observation.sample(region) for observation in observations]
    for sample in samples:
        inquiry.meet(sample)
    explained = [choices for choices in inquiry.best if inquiry.answers[choices].exact]
    answer = NOTHING if inquiry.base.exact else next(iter(explained or inquiry.best), NOTHING)
    exact = inquiry.base.exact or bool(explained)
    undecided = open_choices(inquiry.kernels, answer, samples) if exact else ()
    return Explanation(
        node=node,
        op=region[-1].op.name,
        nodes=tuple(member.name for member in region),
        elements=inquiry.base.elements,
        as_it_is=inquiry.base.equal,
        as_started=inquiry.base.exact,
        tried=len(inquiry.tried),
        calls=inquiry.kernels.calls,
        matches=() if inquiry.base.exact else inquiry.matches,
        open=undecided,
        settings=_settings(replaced, answer),
        left=None if exact else left_by(inquiry.kernels, _nearest(inquiry, answer), samples),
    )


def _nearest(inquiry: Inquiry, best: Choices) -> Choices:
    """The best that was tried, or the plan itself where that has no fewer equal elements."""
    is_nearer = best in inquiry.answers and inquiry.answers[best].equal > inquiry.base.equal
    return best if is_nearer else NOTHING


def _settings(replaced: Replaced, answer: Choices) -> tuple[tuple[str, str], ...]:
    """All choices that take effect at the nodes under an answer, as address and value."""
    bound = replaced.bound(answer)
    return tuple(
        (f"{node.name}:{name}", str(value)) for node in replaced.nodes for name, value in bound.active(node).items()
    )
