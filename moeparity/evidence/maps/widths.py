"""Recorded values of another width than a node's own, which a fault may give."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.engine.grafts import Graft
from moeparity.errors import TraceError
from moeparity.plan.faults.plant import giving_width, width_of
from moeparity.plan.graph import Graph


def refuse_other_widths(graph: Graph, grafts: Mapping[str, Graft]) -> None:
    """Raises TraceError where what was recorded of some tokens, at a node that reads positions alone, has another width
    than this model's, with the faults that give such a one: it can't stand beside what is computed of the others.
    """
    for node in graph.nodes:
        own_width = width_of(node)
        graft = next((grafts[value] for value in node.values if value in grafts), None)
        if own_width is None or graft is None or graft.whole:
            continue
        width = graft.read().shape[1]
        plants = [] if width == own_width else list(giving_width(graph, node, width))
        if plants:
            faults = " or ".join(f"{plant} ({plant.in_words})" for plant in plants)
            raise TraceError(
                f"{graft.where}: {width:,} values for each token; {node.name} has {own_width:,} by this "
                f"checkpoint's config.json. As many has fault {faults}; `moeparity explain` says whether its bits are "
                "these. A recipe compares such values where every token was recorded, and here some were not."
            )
