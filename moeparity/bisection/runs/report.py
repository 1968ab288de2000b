"""What changed between two runs; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.output.json import to_json

SCHEMA = "moeparity.run-comparison/1"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """One of the compared runs: its folder, kind and recipe, when it finished, and its machine."""

    folder: str
    kind: str
    recipe: str
    finished: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that differs between the runs; None if a run does not have it."""

    what: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceChange:
    """A choice of one side that differs. nodes: for how many nodes `address` stands. None: the run does not have it."""

    side: str
    address: str
    nodes: int
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """Nodes that both runs have: how many changed, and the first of them in graph order. by: `bits` if digests of
    values were compared, else `errors`.
    """

    by: Literal["bits", "errors"]
    compared: int
    changed: int
    first: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed between two runs.

    environment: machine, versions, settings, options; such a change alone does not change what was computed.
    choices, digests: what was computed: choices by node, SHA-256 of weights by segment and of tokens.
    metrics: the gate's metric with its interval, and the others. start: the first root. toggles: the fraction of the KL
        that each makes.
    key: differences in what may decide bits besides choices. nodes: None if there are any, or if the reports say
        nothing of single nodes.
    values: how many numbers and words of the two reports differ, by section; without cost and paths. not_compared: why
        the reports can't be compared, "" if they can.
    """

    first: RunHead
    second: RunHead
    environment: tuple[Change, ...]
    choices: tuple[ChoiceChange, ...]
    digests: tuple[Change, ...]
    metrics: tuple[Change, ...]
    start: Change | None
    toggles: tuple[Change, ...]
    key: tuple[Change, ...]
    nodes: NodeChange | None
    values: dict[str, int]
    not_compared: str = ""

    @property
    def exit_code(self) -> int:
        """0 if nothing but cost and environment changed, 1 if anything else did, 3 if that can't be told."""
        if self.choices or self.digests or self.values:
            return 1
        return 3 if self.not_compared else 0

    def to_json(self) -> str:
        """The comparison as strict JSON."""
        return to_json(SCHEMA, self)
