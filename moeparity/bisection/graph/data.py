"""The graph of a run with both sides' choices; layers that are alike are stored once; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SideChoice:
    """One side's choice: its value (`-`: it takes no effect), the evidence for it, and what set it."""

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
    """A value that a node reads. source: the role of the node that makes it; part: which of its results, if several.

    next_layer: the value comes from the layer before. unread: under its settings no side reads it.
    """

    source: str
    part: str
    next_layer: bool
    unread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A node of all layers that are alike. role: its name without the layer's number, such as `layers[*].moe.gate`.
    toggles: those that change a choice of it.
    """

    role: str
    op: str
    reads: tuple[Read, ...]
    choices: tuple[NodeChoice, ...]
    toggles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSegment:
    """Layers that are alike, or the nodes before or after all layers. title: says which; layers: their numbers."""

    title: str
    layers: tuple[int, ...]
    nodes: tuple[GraphNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """All nodes in execution order. Layers are alike where they hold the same nodes with the same choices."""

    segments: tuple[GraphSegment, ...]
