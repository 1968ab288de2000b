"""The graph of a run with both sides' choices, layers that are alike once; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SideChoice:
    """What one side chose: its value (`-`: takes no effect), how sure that is, and what set it."""

    value: str
    evidence: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """One choice at a node, as the reference and the candidate have it."""

    name: str
    reference: SideChoice
    candidate: SideChoice

    @property
    def differs(self) -> bool:
        """Whether the sides have different values."""
        return self.reference.value != self.candidate.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A value that a node reads, by the role of the node that makes it; `part` where that makes several.

    `next_layer`: it comes from the layer before. `unread`: no side reads it under its settings.
    """

    source: str
    part: str
    next_layer: bool
    unread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A node, for all layers that are alike: its role (`layers[*].moe.gate`), op, what it reads, its choices, and the
    toggles that concern it.
    """

    role: str
    op: str
    reads: tuple[Read, ...]
    choices: tuple[NodeChoice, ...]
    toggles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSegment:
    """Layers that are alike, or what stands before and after them: `title` says which, `layers` lists their numbers."""

    title: str
    layers: tuple[int, ...]
    nodes: tuple[GraphNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """All nodes in execution order. Layers are alike where they hold the same nodes with the same choices."""

    segments: tuple[GraphSegment, ...]
