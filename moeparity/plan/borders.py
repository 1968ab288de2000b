"""The borders between stages of a pipeline: which nodes a stage ends with, and which settings a border disables.

A border lies at the residual sum that closes a layer: behind the sum where the stage sends the sum, before it where the
stage sends both addends separately. A fused kernel whose chain of nodes crosses a border is not run: its nodes have the
settings they would have without the fusion. A consumer behind the border reads the stored value, not a value with a
rounding of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from moeparity.ops.attribute import EDGE, STORED
from moeparity.ops.placement import APART, ENDS, HANDS_ON, STAGE, SUM
from moeparity.plan.graph import Graph, Node
from moeparity.plan.setting import Place, Setting

PlacedSettings = Mapping[Place, Setting]


def ends(settings: PlacedSettings) -> dict[str, str]:
    """The nodes that stages end with, each with what it sends to the next stage (`SUM` or `APART`)."""
    return {
        node: str(settings[node, HANDS_ON].value)
        for (node, name), setting in settings.items()
        if name == STAGE and setting.value == ENDS
    }


def in_effect(settings: PlacedSettings) -> PlacedSettings:
    """The settings in effect: those that a border disables are replaced. The same object where there is no border."""
    borders = ends(settings)
    if not borders:
        return settings
    return {place: _in_effect(place, setting, settings, borders) for place, setting in settings.items()}


def _in_effect(place: Place, setting: Setting, settings: PlacedSettings, borders: Mapping[str, str]) -> Setting:
    node, name = place
    if EDGE in name and borders.get(node) == SUM:
        return setting if setting.value == STORED else Setting(value=STORED, rule=settings[node, STAGE].rule)
    while setting.chain and setting.beneath is not None and cut(setting.chain, borders):
        setting = setting.beneath
    return setting


def cut(nodes: Sequence[str], borders: Mapping[str, str]) -> list[str]:
    """The nodes of a chain that a stage ends with inside the chain, so that a border cuts it there."""
    cuts = []
    for before, behind in pairwise(nodes):
        cuts += [before] if borders.get(before) == SUM else []
        cuts += [behind] if borders.get(behind) == APART else []
    return cuts


def closing(graph: Graph) -> list[Node]:
    """The node that closes each layer: the one read by the next layer, or by what follows the layers."""
    nodes = {node.name: node for node in graph.nodes}
    last: dict[int, Node] = {}
    for node in graph.nodes:
        readers = (nodes[reader] for reader in graph.digraph.successors(node.name))
        if node.layer is not None and any(reader.layer != node.layer for reader in readers):
            last[node.layer] = node
    return [last[layer] for layer in sorted(last)]


def stage_of(graph: Graph, settings: PlacedSettings) -> dict[str, int]:
    """By node, the stage that computes it, from 0; nodes before the layers belong to stage 0."""
    borders, stage, stages = ends(settings), 0, {}
    for node in graph.nodes:
        hands_on = borders.get(node.name)
        stage += hands_on == APART
        stages[node.name] = stage
        stage += hands_on == SUM
    return stages
