"""Lanes: every edge of a segment leads from the lane of its value to its reader, and no two values share one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moeparity.bisection.graph.data import GraphNode, GraphSegment, Read
from moeparity.bisection.graph.show import lanes
from moeparity.bisection.report import Report
from moeparity.output.figures import Lanes


def node(name: str, *sources: str) -> GraphNode:
    reads = tuple(Read(source=source, part="", next_layer=False, unread=False) for source in sources)
    return GraphNode(role=name, op="add", reads=reads, choices=(), toggles=())


def segment(*nodes: GraphNode) -> GraphSegment:
    return GraphSegment(title="layers[0:2]", layers=(0, 1), nodes=nodes)


def test_a_chain_stays_in_its_lane() -> None:
    drawn = lanes(segment(node("a", "x"), node("b", "a"), node("c", "b")), frozenset({"c"}))
    assert (drawn.nodes, drawn.branches, drawn.count) == ((0, 0, 0), (), 1)


def test_a_residual_goes_past_what_is_added_to_it() -> None:
    drawn = lanes(segment(node("norm", "x"), node("mlp", "norm"), node("sum", "x", "mlp")), frozenset({"sum"}))
    assert drawn.nodes == (1, 1, 0)
    assert [(branch.row, branch.source, branch.target) for branch in drawn.branches] == [(0, 0, 1), (2, 1, 0)]


@given(st.lists(st.sets(st.integers(0, 30), max_size=4), min_size=1, max_size=20), st.sets(st.integers(0, 19)))
def test_no_value_runs_over_another(reads: list[set[int]], goes_on: set[int]) -> None:
    nodes = [node(f"n{i}", *(f"n{source}" for source in sorted(sources))) for i, sources in enumerate(reads)]
    drawn = lanes(segment(*nodes), frozenset(f"n{i}" for i in goes_on))
    check(drawn, len(nodes))


def check(drawn: Lanes, rows: int) -> None:
    assert len(drawn.nodes) == rows
    assert all(lane < drawn.count for lane in drawn.nodes)
    for trunk in drawn.trunks:
        others = [neighbour for neighbour in drawn.trunks if neighbour is not trunk and neighbour.lane == trunk.lane]
        assert all(neighbour.end <= trunk.start or neighbour.start >= trunk.end for neighbour in others)
        inside = range(trunk.start + 1, min(trunk.end, rows))
        assert all(drawn.nodes[row] != trunk.lane for row in inside), "no node stands on a value that passes it"


def test_the_graph_of_a_run_has_every_node_and_toggle(drawn_report: Report) -> None:
    graph = drawn_report.graph
    assert graph is not None
    assert [part.title for part in graph.segments] == ["before", "layers[0:3]", "after"]
    roles = {item.role for part in graph.segments for item in part.nodes}
    assert all(read.source in roles for part in graph.segments for item in part.nodes for read in item.reads)
    toggle_names = {toggle for part in graph.segments for item in part.nodes for toggle in item.toggles}
    assert toggle_names == {toggle.name for toggle in drawn_report.toggles if toggle.parent is None}
    gate = next(item for item in graph.segments[1].nodes if item.role.endswith("moe.gate"))
    output = next(choice for choice in gate.choices if choice.name == "output")
    assert (output.reference.value, output.candidate.value, output.differs) == ("bf16", "fp32", True)
    assert (output.reference.evidence, output.candidate.evidence) == ("verified", "set by the recipe")
    for part in graph.segments:
        check(lanes(part, frozenset()), len(part.nodes))
