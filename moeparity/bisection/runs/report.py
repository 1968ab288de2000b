"""What changed between two runs, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.output.json import to_json

SCHEMA = "moeparity.run-comparison/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """A run that is compared: its folder, and what it was."""

    folder: str
    kind: str
    recipe: str
    finished: str
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is another in the second run than in the first; None where a run does not have it."""

    what: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceChange:
    """A choice of one side that is another; `nodes` are those that `address` stands for. None: it is not there."""

    side: str
    address: str
    nodes: int
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """Nodes in both runs: how many have other bits, by digests of their values, or other errors where there are no
    digests; and the first such, in graph order.
    """

    by: Literal["bits", "errors"]
    compared: int
    changed: int
    first: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed between two runs.

    environment: machine, versions, settings, options; that alone is no difference of what was computed.
    choices, digests: what was computed: choices by node, SHA-256 of weights by segment and of tokens.
    metrics: the gate's metric with its interval, and the others. start: the first root. toggles: the part of the KL
    that each makes.
    nodes: None where the runs are not keyed alike (`key`, what of it is another), or tell nothing of single nodes.
    values: numbers and words of the two reports that are not equal, by section; without cost, and without paths of
    files. not_compared: why the reports are not held to each other; empty where they are.
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
        """0 where nothing but cost and environment changed, 1 where anything else did, 3 where that cannot be told."""
        if self.choices or self.digests or self.values:
            return 1
        return 3 if self.not_compared else 0

    def to_json(self) -> str:
        """The comparison as strict JSON."""
        return to_json(SCHEMA, self)
