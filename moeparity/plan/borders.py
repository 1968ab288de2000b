"""The borders between stages of a pipeline: which nodes a stage ends with, and what no fused kernel does across one.

A border lies at the sum that closes a layer: behind it where the sum is sent, before it where what is added is sent
apart. A fused kernel whose chain of nodes it cuts is not run: what stands beneath shows there. A consumer on the other
side reads what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from moeparity.ops.attribute import EDGE, STORED
from moeparity.ops.placement import APART, ENDS, HANDS_ON, STAGE, SUM
from moeparity.plan.graph import Graph, Node
from moeparity.plan.setting import Place, Setting

Settings = Mapping[Place, Setting]


def ends(settings: Settings) -> dict[str, str]:
    """The nodes that stages end with, each with what it hands on."""
    return {
        node: str(settings[node, HANDS_ON].value)
        for (node, name), setting in settings.items()
        if name == STAGE and setting.value == ENDS
    }


def in_effect(settings: Settings) -> Settings:
    """The settings with what takes no effect across a border replaced; they themselves where there is none."""
    borders = ends(settings)
    if not borders:
        return settings
    return {place: _in_effect(place, setting, settings, borders) for place, setting in settings.items()}


def _in_effect(place: Place, setting: Setting, settings: Settings, borders: Mapping[str, str]) -> Setting:
    node, name = place
    if EDGE in name and borders.get(node) == SUM:
        return setting if setting.value == STORED else Setting(value=STORED, rule=settings[node, STAGE].rule)
    while setting.chain and setting.beneath is not None and cut(setting.chain, borders):
        setting = setting.beneath
    return setting


def cut(nodes: Sequence[str], borders: Mapping[str, str]) -> list[str]:
    """The nodes of a chain at which a border cuts it."""
    cuts = []
    for before, behind in pairwise(nodes):
        cuts += [before] if borders.get(before) == SUM else []
        cuts += [behind] if borders.get(behind) == APART else []
    return cuts


def closing(graph: Graph) -> list[Node]:
    """What closes each layer: the node that the next one, or what follows the layers, reads."""
    nodes = {node.name: node for node in graph.nodes}
    last: dict[int, Node] = {}
    for node in graph.nodes:
        readers = (nodes[reader] for reader in graph.digraph.successors(node.name))
        if node.layer is not None and any(reader.layer != node.layer for reader in readers):
            last[node.layer] = node
    return [last[layer] for layer in sorted(last)]


def stage_of(graph: Graph, settings: Settings) -> dict[str, int]:
    """By node, the stage that computes it; what stands before the layers is the first's."""
    borders, stage, stages = ends(settings), 0, {}
    for node in graph.nodes:
        hands_on = borders.get(node.name)
        stage += hands_on == APART
        stages[node.name] = stage
        stage += hands_on == SUM
    return stages
