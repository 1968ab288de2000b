"""Two hypotheses at one side as one: which can be true at once, and whose weights come first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moeparity.doctor.hypotheses import Hypothesis, coarse, nodes_of
from moeparity.doctor.pairs import joined
from moeparity.doctor.readings import Rows
from moeparity.inputs.model import open_model
from moeparity.plan.faults.apply import applied
from moeparity.plan.faults.fault import planted
from moeparity.plan.graph import Graph, Node

EXPERTS = "layers[1].moe.experts"
STALE, EXCHANGED = "stale weights of routed experts of all layers", "gate-and-up-exchanged"


@pytest.fixture(scope="module")
def graph(small: Path) -> Graph:
    return open_model(small).graph


@pytest.fixture(scope="module")
def hypotheses(graph: Graph, small_before: Path) -> dict[str, Hypothesis]:
    return {each.name: each for each in coarse(graph, small_before)}


def at_experts(graph: Graph, of: Hypothesis) -> Node:
    """The node of experts as the hypothesis has it."""
    (node,) = nodes_of(graph, [EXPERTS])
    there = [planted(plant.fault, dict(plant.values)) for plant in of.plants if plant.node == EXPERTS]
    return applied(graph, node, there)


def test_what_is_done_to_weights_is_done_to_those_of_the_other_checkpoint(
    graph: Graph, hypotheses: dict[str, Hypothesis], small_before: Path
) -> None:
    joint = joined(hypotheses[EXCHANGED], hypotheses[STALE])
    assert joint is not None
    node, exchanged = (at_experts(graph, of) for of in (joint, hypotheses[EXCHANGED]))
    assert exchanged.weights != nodes_of(graph, [EXPERTS])[0].weights
    for port, ref in node.weights.items():
        of_exchanged = exchanged.weights[port].pieces
        assert ref.pieces == tuple(replace(part, checkpoint=str(small_before)) for part in of_exchanged)


def test_the_order_makes_no_difference(hypotheses: dict[str, Hypothesis]) -> None:
    assert joined(hypotheses[STALE], hypotheses[EXCHANGED]) == joined(hypotheses[EXCHANGED], hypotheses[STALE])


def test_a_part_is_nothing_beside_the_whole(hypotheses: dict[str, Hypothesis]) -> None:
    assert joined(hypotheses[STALE], hypotheses["stale all weights"]) is None
    assert joined(hypotheses["stale weights of layer 1"], hypotheses["stale weights of layer 0"]) is not None


def test_tokens_that_a_side_misread_are_no_member(hypotheses: dict[str, Hypothesis]) -> None:
    misread = Hypothesis(name="first token missing", says="", reading=Rows(dropped=1))
    assert joined(hypotheses[STALE], misread) is None
