"""Faults with an open number, as families of hypotheses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from moeparity.doctor.numbers import LEFT_OUT, Family, families
from moeparity.doctor.solve import Lead
from moeparity.evidence.explain.numbers import solve_together
from moeparity.inputs.model import open_model
from moeparity.plan.graph import Graph
from tests.doctor.programs import QUICKSTART


@pytest.fixture(scope="module")
def graph() -> Graph:
    return open_model(QUICKSTART, device="cpu").graph


@pytest.fixture(scope="module")
def every(graph: Graph) -> dict[str, Family]:
    return {family.name: family for family in families(graph, 24, padded=False)}


def test_each_open_number_is_a_family(every: dict[str, Family]) -> None:
    assert {"rope-base", "norm-eps", "softmax-scale", "temperature-in-the-head", "window"} <= every.keys()
    assert "weights-scaled of layers[*].attention.v_proj" in every
    assert not {*every} & {*LEFT_OUT, "mask-shifted"}
    assert len(every["weights-scaled of layers[*].attention.v_proj"].nodes) == 4


def test_the_mask_of_padding_is_tried_where_there_is_padding(graph: Graph) -> None:
    assert "mask-shifted" in {family.name for family in families(graph, 24, padded=True)}


def test_fp8_is_tried_where_a_quantised_checkpoint_has_no_codes(graph: Graph, every: dict[str, Family]) -> None:
    """In each layer, and in all together where that is something else."""
    assert {name for name in every if "weights-in-fp8" in name} == {"weights-in-fp8"}
    nodes = [f"layers[{layer}].attention.{name}_proj" for layer in (0, 2) for name in "qk"]
    for absent in (nodes, nodes[:2], []):
        of_rounding = {
            name: [*family.nodes]
            for name, family in ((f.name, f) for f in families(graph, 24, padded=False, unquantised=absent))
            if "weights-in-fp8" in name
        }
        parts = {f"layer {layer}, ": [node for node in absent if f"[{layer}]" in node] for layer in (0, 2)}
        parts |= {"": nodes} if absent == nodes else {}
        assert of_rounding == {
            f"weights-in-fp8 of {of}what is to stay as it is": part for of, part in parts.items() if part
        }


def test_what_a_number_has_to_be_is_not_tried(every: dict[str, Family]) -> None:
    assert every["rope-base"].nominal == 10_000
    assert 10_000 not in every["rope-base"].grid
    assert all(4 <= window < 24 for window in every["window"].grid)


def test_a_member_has_the_number_at_every_node(every: dict[str, Family]) -> None:
    member = every["softmax-scale"].at(1.3)
    assert member.name == "softmax-scale(factor=1.3)"
    assert member.family == "softmax-scale"
    assert [plant.values for plant in member.plants] == [(("factor", 1.3),)] * 4
    assert not every["window"].is_solved
    assert every["window"].at(8).plants[0].values == (("window", 8),)


def test_a_number_is_solved_for(every: dict[str, Family]) -> None:
    lead = Lead(family=every["softmax-scale"], party="trainer", near=1.4)
    tried: list[float] = []

    def remainders(numbers: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        tried.extend(numbers["softmax-scale"])
        return {"softmax-scale": [(x - 1.3) ** 2 + 0.01 for x in numbers["softmax-scale"]]}

    numbers = solve_together({"softmax-scale": lead.search}, remainders)["softmax-scale"]
    assert tried[:3] == [0.7, 2.8, 1.4]
    assert abs(numbers[0] - 1.3) < 0.01
    assert 1.3 in numbers
