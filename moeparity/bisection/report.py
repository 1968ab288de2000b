"""The report as frozen plain data: what the terminal shows and what `--json` writes; and the list of its sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from moeparity.bisection.arrival.report import Arrival
from moeparity.bisection.degeneracy.report import Degeneracy
from moeparity.bisection.determinism.report import NotDeterministic
from moeparity.bisection.digests.report import Digests
from moeparity.bisection.distribution.report import Distribution
from moeparity.bisection.divergence.report import LayerGrowth, NodeError, Root
from moeparity.bisection.envelope.report import Envelope
from moeparity.bisection.flips.report import RoutingFlips
from moeparity.bisection.floor.report import Floor
from moeparity.bisection.graph.report import OpGraph
from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.nonfinite.report import Nonfinite
from moeparity.bisection.oracle.report import Oracle
from moeparity.bisection.per_token.report import PerToken
from moeparity.bisection.provenance.report import Provenance
from moeparity.bisection.real_ranks.report import RealRanks
from moeparity.bisection.record.report import Record, Recorded
from moeparity.bisection.replay.report import Replay
from moeparity.bisection.run.report import Cost, Run, Variant
from moeparity.bisection.schedule.report import Schedule
from moeparity.bisection.shares.report import Attribution
from moeparity.bisection.summary.report import Summary
from moeparity.bisection.toggles.report import Offset, Swap, ToggleResult
from moeparity.bisection.tokens.report import ClassMetrics
from moeparity.bisection.trace.report import Traced
from moeparity.bisection.verdict.report import Metrics
from moeparity.metrics.verdict import Verdict
from moeparity.output.json import to_json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "moeparity.report/3"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True)
class Section:
    """What makes a part of the report: the folder `moeparity/bisection/<name>`.

    Parts stand in the JSON in the order of the class, on the screen in that of `screen` (None: they are not there).
    A part that is `asked` for by a name is long: the screen tells in one line what it `holds`, and shows it on request.
    `part` is what it is called where one field has several.
    """

    name: str
    screen: int | None = None
    asked: str = ""
    holds: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything one bisection found. This is the list of its sections: a line for every part, with its folder."""

    run: Annotated[Run, Section("run", screen=2)]
    reference: Annotated[Variant, Section("run")]
    candidate: Annotated[Variant, Section("run")]
    record: Annotated[
        Record, Section("record", screen=5, asked="record", holds="what was recorded, beside what each side computes")
    ]
    degeneracy: Annotated[Degeneracy, Section("degeneracy", screen=15)]
    verdict: Annotated[
        Verdict,
        Section(
            "verdict", screen=20, asked="metrics", holds="k1, k2, k3, KL both ways, |delta log p|, top-1 agreement"
        ),
    ]
    metrics: Annotated[Metrics, Section("verdict")]
    roots: Annotated[
        tuple[Root, ...],
        Section("divergence", screen=30, asked="starts", holds="the roots: choices with value, flag, file and line"),
    ]
    growth: Annotated[
        tuple[LayerGrowth, ...],
        Section("divergence", screen=40, asked="growth", holds="the carried error after each layer, and the local one"),
    ]
    flips: Annotated[
        RoutingFlips | None,
        Section("flips", screen=50, asked="flips", holds="routing flips of each layer, their margins and their cost"),
    ]
    toggles: Annotated[
        tuple[ToggleResult, ...],
        Section("toggles", screen=110, asked="toggles", holds="every choice that differs, alone and restored"),
    ]
    swaps: Annotated[
        tuple[Swap, ...], Section("toggles", screen=140, asked="swaps", holds="whole blocks restored to the reference")
    ]
    reading: Annotated[
        tuple[str, ...],
        Section("toggles", screen=150, asked="words", holds="what the trials say in sentences; all flags"),
    ]
    nodes: Annotated[tuple[NodeError, ...], Section("divergence")]
    warnings: Annotated[tuple[str, ...], Section("tokens", screen=10)] = ()
    distribution: Annotated[Distribution | None, Section("distribution")] = None
    recorded: Annotated[
        Recorded | None,
        Section("record", screen=160, asked="record", holds="log-probabilities and routes of each side against it"),
    ] = None
    classes: Annotated[
        tuple[ClassMetrics, ...],
        Section("tokens", screen=170, asked="classes", holds="k3, |delta| and flips by class of token"),
    ] = ()
    floor: Annotated[
        Floor | None, Section("floor", screen=90, asked="floor", holds="the reference against itself, reordered")
    ] = None
    oracle: Annotated[
        Oracle | None, Section("oracle", screen=100, asked="oracle", holds="which side is nearer to the fp64 run")
    ] = None
    arrival: Annotated[
        Arrival | None,
        Section("arrival", screen=80, asked="arrival", holds="how far the draws of an order of arrival lie apart"),
    ] = None
    replay: Annotated[
        Replay | None,
        Section("replay", screen=60, asked="replay", holds="the candidate with the reference's routes forced"),
    ] = None
    envelope: Annotated[
        Envelope | None,
        Section("envelope", screen=70, asked="envelope", holds="what legal orders of the same sums give at each node"),
    ] = None
    attribution: Annotated[
        Attribution | None,
        Section("shares", screen=130, asked="shares", holds="the KL shared out among the toggles; smallest fixes"),
        Section("shares", screen=131, part="fixes", asked="shares", holds="the smallest fixes"),
    ] = None
    not_deterministic: Annotated[tuple[NotDeterministic, ...], Section("determinism", screen=15)] = ()
    nearest: Annotated[
        tuple[Nearest, ...],
        Section("nearest", screen=120, asked="nearest", holds="known choices with the bits of a user's function"),
    ] = ()
    offsets: Annotated[tuple[Offset, ...], Section("toggles")] = ()
    nonfinite: Annotated[Nonfinite | None, Section("nonfinite", screen=25)] = None
    schedule: Annotated[Schedule | None, Section("schedule", screen=95)] = None
    trace: Annotated[Traced | None, Section("trace", screen=45)] = None
    real_ranks: Annotated[RealRanks | None, Section("real_ranks", screen=97)] = None
    digests: Annotated[Digests | None, Section("digests")] = None
    graph: Annotated[OpGraph | None, Section("graph")] = None
    provenance: Annotated[Provenance | None, Section("provenance")] = None
    per_token: Annotated[PerToken | None, Section("per_token")] = field(
        default=None, compare=False, metadata={"json": False}
    )
    summary: Annotated[Summary, Section("summary", screen=1)]
    cost: Annotated[
        Cost, Section("run", screen=180, asked="cost", holds="work done and spared, bytes read, seconds, memory")
    ]

    @property
    def exit_code(self) -> int:
        """0 parity, 1 divergence, 3 inconclusive."""
        return self.verdict.exit_code

    def to_json(self) -> str:
        """The report as JSON: strict, so that a number that is not finite is written as the word nan, inf or -inf."""
        return to_json(SCHEMA, self)

    def frame(self, name: str) -> pd.DataFrame:
        """A table of the report as a pandas frame, such as `toggles`. Raises MoeparityError; see `frame` in
        moeparity/bisection/notebook.py.
        """
        table: pd.DataFrame = _view().frame(self, name)
        return table

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        text: str = _view().html(self)
        return text


def _view() -> Any:
    """What shows reports in notebooks; it knows the text of all sections, which know this module."""
    return import_module("moeparity.bisection.notebook")


PARTS: dict[str, Section] = {
    note.part or name: note
    for name, hint in get_type_hints(Report, include_extras=True).items()
    for note in getattr(hint, "__metadata__", ())
}
"""All parts by field, in the order of the JSON."""

SCREEN: tuple[str, ...] = tuple(
    sorted((name for name, part in PARTS.items() if part.screen is not None), key=lambda name: PARTS[name].screen or 0)
)
"""Those that are on the screen, in its order; the first opens it and closes it."""

ON_REQUEST: tuple[str, ...] = tuple(dict.fromkeys(PARTS[name].asked for name in SCREEN if PARTS[name].asked))
"""The names by which long parts are asked for, in the order of the screen."""
