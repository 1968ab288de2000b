"""Everything that a bisection found, as frozen plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Self, get_args, get_type_hints

from moeparity.bisection.arrival.data import Arrival
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.determinism.data import NotDeterministic
from moeparity.bisection.digests.data import Digests
from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.divergence.data import KnownDifference, LayerGrowth, NodeError, Root
from moeparity.bisection.envelope.data import Envelope
from moeparity.bisection.flips.data import RoutingFlips
from moeparity.bisection.floor.data import Floor
from moeparity.bisection.graph.data import OpGraph
from moeparity.bisection.nearest.data import Nearest
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.oracle.data import Oracle
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.provenance.data import Provenance
from moeparity.bisection.real_ranks.data import RealRanks
from moeparity.bisection.record.data import OtherRecord, Record, Recorded, of_both
from moeparity.bisection.replay.data import Replay
from moeparity.bisection.rewards.data import Rewards
from moeparity.bisection.run.data import Cost, Run, Variant
from moeparity.bisection.schedule.data import Schedule
from moeparity.bisection.shares.data import Attribution
from moeparity.bisection.spikes.data import Spikes
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.toggles.data import LeftOut, Offset, Swap, ToggleResult
from moeparity.bisection.tokens.data import ClassMetrics
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.updates.data import Updates
from moeparity.bisection.verdict.data import Metrics
from moeparity.metrics.verdict import Verdict
from moeparity.search.blame import Blame


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything one bisection found; its fields are the keys of the JSON.

    The data that a measure gives is either one field, or a dataclass whose own fields are several of these.
    """

    run: Run
    reference: Variant
    candidate: Variant
    record: Record
    degeneracy: Degeneracy
    verdict: Verdict
    metrics: Metrics
    roots: tuple[Root, ...]
    growth: tuple[LayerGrowth, ...]
    flips: RoutingFlips | None = None
    toggles: tuple[ToggleResult, ...]
    swaps: tuple[Swap, ...]
    reading: tuple[str, ...]
    nodes: tuple[NodeError, ...]
    warnings: tuple[str, ...] = ()
    distribution: Distribution | None = None
    recorded: Recorded | None = None
    other_record: OtherRecord | None = None
    classes: tuple[ClassMetrics, ...] = ()
    floor: Floor | None = None
    oracle: Oracle | None = None
    arrival: Arrival | None = None
    spikes: Spikes | None = None
    updates: Updates | None = None
    rewards: Rewards | None = None
    replay: Replay | None = None
    envelope: Envelope | None = None
    attribution: Attribution | None = None
    not_deterministic: tuple[NotDeterministic, ...] = ()
    nearest: tuple[Nearest, ...] = ()
    offsets: tuple[Offset, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    nonfinite: Nonfinite | None = None
    schedule: Schedule | None = None
    trace: Traced | None = None
    subtracted: tuple[KnownDifference, ...] = ()
    real_ranks: RealRanks | None = None
    digests: Digests | None = None
    graph: OpGraph | None = None
    provenance: Provenance | None = None
    per_token: PerToken | None = field(default=None, compare=False, metadata={"json": False})
    blame: Blame
    summary: Summary
    cost: Cost

    @property
    def records(self) -> tuple[Record, ...]:
        """The record of the side that sampled, and that of the other one if there is any."""
        return of_both(self.record, self.other_record)

    @classmethod
    def of(cls, data: Iterable[object]) -> Self:
        """The report made of the data of all measures: each is the field of its type, or fills the fields of its own
        names.
        """
        by_type = {kind: name for name, hint in get_type_hints(cls).items() for kind in (hint, *get_args(hint))}
        values_of: dict[str, Any] = {}
        for part in data:
            if type(part) in by_type:
                values_of[by_type[type(part)]] = part
            else:
                values_of |= {each.name: getattr(part, each.name) for each in fields(part)}  # type: ignore[arg-type]
        return cls(**values_of)
