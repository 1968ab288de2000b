"""The roots, and the errors after each layer and at each node, from what the observer saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from moeparity.bisection.context import Context, Measure, filled
from moeparity.bisection.divergence.data import (
    Choice,
    Divergence,
    KnownDifference,
    LayerGrowth,
    NodeError,
    Root,
    Size,
    TokenPlace,
)
from moeparity.bisection.divergence.observe import RECORDS, NodeRecord
from moeparity.bisection.observed import Observed
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.study import Study
from moeparity.bisection.trials import alone
from moeparity.bisection.watch import Search
from moeparity.metrics.divergence import Error
from moeparity.plan.difference import Difference, two_sided
from moeparity.plan.evidence import evidence
from moeparity.plan.graph import Node
from moeparity.plan.sides import REFERENCE
from moeparity.plan.toggles import Toggle
from moeparity.progress import Callback

Known = Mapping[str, tuple[float, float]]
"""By node, the local errors of the candidate and of the good run."""


def search(study: Study, observed: Observed, progress: Callback | None, store: PieceStore | None) -> Known | None:
    """The nodes that differ in the good run as much as in the candidate; None if the recipe names no good run."""
    if study.good_run is None:
        return None
    return study.good_run.differences(study.reference.plan, study.model.weights)


BASELINE: Final[Search[Known]] = Search("baseline", search)


Records = Mapping[str, NodeRecord]


def measure(of: Context) -> Divergence:
    """The roots, the growth over layers, and the errors of every node."""
    records = of.observed.of_watch(RECORDS) or {}
    roots = list(_roots(of.study, of.observed, records))
    subtracted = of.observed.of_search(BASELINE) or {}
    if of.study.recorded is not None:
        # Each node of a trace is looked at by itself, so that the first one is not what the others come of.
        roots.sort(key=lambda root: -root.local)
    return Divergence(
        roots=tuple(root for root in roots if root.node not in subtracted),
        subtracted=tuple(
            KnownDifference(node=node, local=local, baseline=baseline) for node, (local, baseline) in subtracted.items()
        ),
        growth=tuple(_growth(of.study, records)),
        nodes=tuple(_node_errors(records)),
    )


def _roots(study: Study, observed: Observed, records: Records) -> Iterator[Root]:
    for record in records.values():
        if record.is_root:
            same_values = not record.root_values.tokens
            extent = record.root_cells if same_values else record.root_values
            yield filled(
                Root,
                extent,
                node=record.node.name,
                op=record.node.op.name,
                same_values=same_values,
                local=_root_size(record),
                places=tuple(_places(study, record)),
                choices=tuple(_choices(study, observed, record.node)),
                unshown=_unshown(study, record.node),
            )


def _root_size(record: NodeRecord) -> float:
    """The local error of a root."""
    if record.local is None or record.local.excluded:
        return math.inf
    size = float(record.local.relative_l2)
    return math.inf if record.node.op.role.routes and size == 0 else size


def _places(study: Study, record: NodeRecord) -> Iterator[TokenPlace]:
    requests = {} if study.recorded is None else study.recorded.requests
    for sequence, position in record.places:
        yield TokenPlace(sequence=sequence, position=position, request=requests.get(sequence, ""))


def _unshown(study: Study, node: Node) -> tuple[str, ...]:
    """The nodes between recorded values and this node, in the graph's order; () if the candidate is no recording."""
    if study.recorded is None:
        return ()
    makers = {value: maker for maker in study.model.graph.nodes for value in maker.values}
    waiting, between = [node], set[str]()
    while waiting:
        for value in waiting.pop().inputs:
            maker = makers.get(value)
            if maker is not None and value not in study.recorded.grafts and maker.name not in between:
                between.add(maker.name)
                waiting.append(maker)
    return tuple(node.name for node in study.model.graph.nodes if node.name in between)


def _choices(study: Study, observed: Observed, node: Node) -> Iterator[Choice]:
    """The choices that differ at a node and that alone make it a root; if none does alone, all that differ there."""
    toggles = [toggle for toggle in study.toggles if any(_choices_of(study, toggle, node))]
    root_makers = [
        toggle for toggle in toggles if node.name in observed.changes.roots.get((alone(toggle), REFERENCE), ())
    ]
    # A toggle that was taken apart is reported by its parts.
    causes = root_makers or toggles
    parents = {toggle.parent for toggle in causes}
    yield from dict.fromkeys(c for t in causes if t.name not in parents for c in _choices_of(study, t, node))


def _choices_of(study: Study, toggle: Toggle, node: Node) -> Iterator[Choice]:
    """The choices of a toggle at a node that take effect on both sides."""
    if not toggle.members:
        yield _choice(study, toggle.name, toggle, ())
    members = [member for member in toggle.members if member.node.name == node.name and not member.resting]
    yield from (_choice(study, member.attribute, member, (member,)) for member in members)


def _choice(study: Study, attribute: str, choice: Toggle | Difference, members: Sequence[Difference]) -> Choice:
    reference, candidate = evidence(members, study.reference.plan, study.candidate.plan)
    return Choice(attribute=attribute, **two_sided(choice), reference_evidence=reference, candidate_evidence=candidate)


def _growth(study: Study, records: Records) -> Iterator[LayerGrowth]:
    for segment in study.model.graph.segments:
        segment_records = [records[node.name] for node in segment.nodes if node.name in records]
        float_records = [
            record for record in segment_records if record.carried is not None and record.local is not None
        ]
        if segment.name == "before" or not float_records:
            continue
        last_record, peak = float_records[-1], max(float_records, key=_local_size)
        assert last_record.carried is not None
        yield LayerGrowth(
            name=segment.name,
            node=last_record.node.name,
            carried=_size(last_record.carried),
            largest_local=_local_size(peak),
            largest_local_node=peak.node.name if _local_size(peak) else "",
            not_measured=tuple(r.node.name for r in segment_records if not (r.measured or r.node.op.role.routes)),
        )


def _local_size(record: NodeRecord) -> float:
    # Routing weights sit in slot order, so one reordering of slots would outweigh every rounding.
    if record.local is None or record.node.op.role.routes:
        return 0.0
    return math.inf if record.local.excluded else record.local.relative_l2


def _node_errors(records: Records) -> Iterator[NodeError]:
    for record in records.values():
        if record.carried is not None and record.local is not None:
            yield NodeError(
                node=record.node.name,
                op=record.node.op.name,
                layer=record.node.layer,
                carried=_size(record.carried),
                local=_size(record.local),
            )


def _size(error: Error) -> Size:
    reference, candidate = error.nonfinite
    return filled(Size, error, nonfinite_reference=reference, nonfinite_candidate=candidate)


MEASURE = Measure(gives=Divergence, measure=measure, watch=RECORDS, search=BASELINE)
