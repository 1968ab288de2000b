"""Experts that a difference points at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.doctor.experts import Chosen, Suspect, exchanges, mistakes, scaled, suspects
from moeparity.inputs.model import open_model
from moeparity.plan.graph import Graph, Node
from tests.doctor.programs import QUICKSTART, command, drifted, log, scored, tokens


@pytest.fixture(scope="module")
def graph() -> Graph:
    return open_model(QUICKSTART, device="cpu").graph


def experts(graph: Graph, layer: int) -> Node:
    return next(node for node in graph.nodes if node.name == f"layers[{layer}].moe.experts")


def test_the_expert_whose_tokens_are_off_comes_first(graph: Graph) -> None:
    """Of each scored token the route of the position before it counts."""
    draw = torch.Generator().manual_seed(0)
    ids = {
        node.name: {
            first: torch.stack([torch.randperm(24, generator=draw)[:6] for _ in range(4 * 16)]).view(4, 16, 6)
            for first in (0, 4)
        }
        for node in graph.nodes
        if node.op.role.routes
    }
    chosen = Chosen("anyone", ids)
    sequence, position = torch.meshgrid(torch.arange(8), torch.arange(1, 16), indexing="ij")
    gets = (chosen.of("layers[2].moe.router")[sequence.flatten(), position.flatten() - 1] == 7).any(-1)
    d = 0.01 * torch.randn(gets.numel(), generator=draw, dtype=torch.float64) + 0.5 * gets
    first, *others = suspects(graph, chosen, d, (sequence.flatten(), position.flatten()))
    assert first.name == "expert 7 of layers[2].moe.experts"
    assert len(others) == 3
    assert suspects(graph, chosen, torch.zeros_like(d), (sequence.flatten(), position.flatten())) == []


def test_what_is_tried_of_suspects(graph: Graph) -> None:
    """Of each alone, and of two at one node that they are exchanged; in a layer of 24 every other expert's weights."""
    of = [Suspect(experts(graph, 1), 3), Suspect(experts(graph, 2), 3), Suspect(experts(graph, 1), 0)]
    names = [each.name for each in mistakes(graph, of, None)]
    assert len(names) == len({*names})
    assert "expert-zeroed(expert=3) of layers[2].moe.experts" in names
    assert sum(name.startswith("expert-of-another-expert(expert=3, ") for name in names) == 2 * 23
    assert [name for name in names if name.startswith("expert-of-another-layer(expert=0")] == [
        f"expert-of-another-layer(expert=0, layer={layer}) of layers[1].moe.experts" for layer in (0, 2, 3)
    ]
    assert [name for name in names if name.startswith("experts-exchanged")] == [
        "experts-exchanged(expert=0, other=3) of layers[1].moe.experts",
        "experts-exchanged(expert=0, other=3, part=down) of layers[1].moe.experts",
    ]
    assert [family.name for family in scaled(of[:1])] == [
        "expert-scaled of down of expert 3 of layers[1].moe.experts",
        "expert-scaled of gate and up of expert 3 of layers[1].moe.experts",
    ]


def test_where_one_expert_has_anothers_weights_both_may_be_exchanged(graph: Graph) -> None:
    node = experts(graph, 1)
    every = {each.name: each for each in mistakes(graph, [Suspect(node, 3)], None)}
    of_another = every["expert-of-another-expert(expert=3, other=9) of layers[1].moe.experts"]
    assert (
        next(iter(exchanges(of_another, node))).name == "experts-exchanged(expert=3, other=9) of layers[1].moe.experts"
    )
    assert [*exchanges(every["expert-zeroed(expert=3) of layers[1].moe.experts"], node)] == []


def test_an_expert_that_a_program_scales_is_named_with_its_number(small: Path, tmp_path: Path) -> None:
    """Among several sequences, with nothing told but both records and the checkpoint."""
    ids = tokens(24, 24)

    def halve(model: Any) -> None:
        model.model.layers[1].mlp.experts.down_proj.data[5] *= 0.5

    path = log(tmp_path / "log.jsonl", ids, scored(small, ids, 4, patch=halve), scored(small, ids, 8))
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    (name,) = of["blame"]["named"]
    assert name.endswith("of down of expert 5 of layers[1].moe.experts")
    assert name.startswith("expert-scaled(factor=0.5")
    assert of["explanations"][0]["party"] == "sampler"


def test_two_experts_exchanged_in_a_loader_are_named(small: Path, tmp_path: Path) -> None:
    ids = tokens(32, 32)

    def exchange(model: Any) -> None:
        weights = model.model.layers[0].mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            data = getattr(weights, name).data
            data[[2, 11]] = data[[11, 2]]

    previous = drifted(small, tmp_path / "previous")
    path = log(tmp_path / "log.jsonl", ids, scored(small, ids, 4), scored(small, ids, 8, patch=exchange))
    of = command(path, small, "--previous", previous, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert of["blame"]["named"] == ["experts-exchanged(expert=2, other=11) of layers[0].moe.experts"]
    assert of["explanations"][0]["party"] == "trainer"
