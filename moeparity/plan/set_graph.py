"""A graph with a setting for every place: what can be told of one node from its own settings alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from moeparity.numerics.dtypes import MODEL
from moeparity.ops.attribute import EDGE, STORED, Attribute, Value
from moeparity.plan.faults.apply import applied
from moeparity.plan.faults.fault import Planted
from moeparity.plan.graph import Graph, Node
from moeparity.plan.latest import Latest
from moeparity.plan.region import Region
from moeparity.plan.setting import DTYPE, FAULT, IMPL, Place, Setting, edges_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGraph:
    """A graph, the dtype it nominally runs in, and the setting in effect at every place.

    regions: the users' functions that either side of a mixture knows, by closing node and call. A region is in force
        where the `impl` setting of its closing node names it.
    faults: those that either side of a mixture knows, by the text that settings have for them.
    dormant: what the profile sets for attributes that a node lacks as the checkpoint has it; a fault that changes the
        node's parameters may give it these attributes.
    planted: the nodes at which a fault is planted: the computation of each as the graph has it, and the node with its
        faults.
    """

    graph: Graph
    dtype: str
    settings: Mapping[Place, Setting]
    regions: Mapping[Place, Region] = field(default_factory=dict)
    faults: Mapping[str, tuple[Planted, ...]] = field(default_factory=dict)
    dormant: Mapping[Place, Setting] = field(default_factory=dict, repr=False, compare=False)
    planted: Mapping[str, tuple[str, Node]] = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        graph: Graph,
        dtype: str,
        settings: Mapping[Place, Setting],
        regions: Mapping[Place, Region],
        faults: Mapping[str, tuple[Planted, ...]],
        dormant: Mapping[Place, Setting],
    ) -> Self:
        """The graph with these settings, and with its faults planted. Raises SpecError where one can't be."""
        planted = {}
        for node in graph.nodes if faults else ():
            text = str(settings[node.name, FAULT].value)
            if text:
                plants = faults[text]
                as_run = _LATEST.of((graph, node, plants), None, partial(applied, graph, node, plants))
                planted[node.name] = (node.computation, as_run)
        return cls(
            graph=graph,
            dtype=dtype,
            settings=settings,
            regions=regions,
            faults=faults,
            dormant=dormant,
            planted=planted,
        )

    def as_run(self, node: Node) -> Node:
        """A node of the graph as these settings run it: with the parameters, weights and edits of the faults there.

        A node whose parameters the caller has already replaced is returned as it is.
        """
        computation, rewritten = self.planted.get(node.name, ("", node))
        return rewritten if node.computation == computation else node

    @property
    def nodes_as_run(self) -> tuple[Node, ...]:
        """All nodes as these settings run them."""
        return tuple(map(self.as_run, self.graph.nodes))

    def values(self, node: Node) -> dict[str, Value]:
        """The value of each attribute of a node as it is run; of attributes that only a fault adds, what the profile
        says.
        """
        return {attribute.name: self.setting(node, attribute).value for attribute in self.as_run(node).attributes}

    def setting(self, node: Node, attribute: Attribute) -> Setting:
        """The setting of an attribute of a node as it is run; of an attribute that only a fault adds, the profile's."""
        place = (node.name, attribute.name)
        stated = self.settings.get(place) or self.dormant.get(place)
        return Setting(value=attribute.default, rule=None) if stated is None else stated

    def origin(self, node: Node, name: str) -> str:
        """Where the value of one of a node's attributes, or its fault, was set."""
        if name == FAULT:
            return self.settings[node.name, FAULT].origin
        return next(self.setting(node, declared).origin for declared in node.op.attributes if declared.name == name)

    def dtype_of(self, node: str) -> str:
        """The dtype a node runs in: the variant's own, or the other side's in a mixture."""
        return str(self.settings[node, DTYPE].value)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Every dtype that some node runs in."""
        return tuple(dict.fromkeys(self.dtype_of(node.name) for node in self.graph.nodes))

    def resolved(self, node: str, value: Value) -> Value:
        """`model` becomes the dtype the node runs in."""
        return self.dtype_of(node) if value == MODEL else value

    def edges(self, node: Node) -> dict[str, tuple[str, Value]]:
        """Consumers that read the node's result in another rounding than the stored one: consumer -> (site, dtype)."""
        roundings = {}
        for site, consumer in edges_of(self.graph, node):
            value = self.settings[node.name, f"{site}{EDGE}{consumer}"].value
            if value != STORED:
                roundings[consumer] = (site, self.resolved(node.name, value))
        return roundings

    def region(self, node: str) -> Region | None:
        """The region (a user's function) whose last node this is, if one is in force."""
        if not self.regions:
            return None
        return self.regions.get((node, str(self.settings[node, IMPL].value)))

    def replaced(self) -> dict[str, Region]:
        """Every node whose own kernel is not run, with the region that is run instead."""
        # A region in force is named by the setting of its closing node, so walking the known ones is enough.
        active = [region for (end, _), region in self.regions.items() if self.region(end) is region]
        return {node: region for region in active for node in region.nodes}

    def set_otherwise(self, like: SetGraph, places: Collection[Place]) -> frozenset[str]:
        """The nodes with another setting than in `like`; `places` are the only ones that may differ."""
        # Most settings are the very same ones.
        pairs = ((node, self.settings[node, name], like.settings[node, name]) for node, name in places)
        changed = frozenset(node for node, new, old in pairs if new is not old and new.value != old.value)
        # A fault may bring dormant settings into effect, so its nodes count as changed.
        return changed | self.planted.keys() if self.faults and self.dormant != like.dormant else changed


_LATEST: Final[Latest[Node]] = Latest(256)
"""All phases of a plan have the same faults."""
