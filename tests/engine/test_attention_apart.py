"""Data-parallel attention: each group of ranks computes the rows of its own sequences, the rest those of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.errors import SpecError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.plan.attention_groups import computed_apart
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, placement_rules
from moeparity.plan.schedule.rank_groups import dealt
from moeparity.plan.schedule.steps import Span, Step, rectangle
from moeparity.plan.spec.variant_schema import Placement

CHECKPOINT = "checkpoints/quickstart"
IDS = torch.randint(0, 250, (7, 9), generator=torch.Generator().manual_seed(1))
GROUPS = ((0, 3), (3, 5), (5, 7))
"""Seven sequences, dealt out to three groups."""
ATTENTION = ["layers.0.attention.q_proj", "layers.0.attention.attend", "layers.0.attention.reduce"]
ROUTING = ["layers.0.moe.gate", "layers.0.router.ids", "layers.0.router.weights"]
RING = {"**.reduce:collective": "nccl.ring", "layers[*].attention.attend:implementation": "sdpa"}


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model(CHECKPOINT, device="cpu", residency="resident")


def values(model: Model, ids: torch.Tensor, placement: dict[str, Any], **further: Any) -> dict[str, torch.Tensor]:
    save = ["layers[0].attention.*", "layers[0].moe.gate", "layers[0].moe.combine"]
    return forward(model, ids, placement=placement, settings=RING, save=save, **further)


@pytest.mark.parametrize(
    ("gathered", "further"),
    [("mlp", {}), ("experts", {"schedule": {"decode": {"from": 7}}})],
    ids=["forward", "decode"],
)
def test_a_group_computes_as_if_its_sequences_were_alone(model: Model, gathered: str, further: dict[str, Any]) -> None:
    apart = values(model, IDS, {"attention": 3, "tensor": 4, "gathered": gathered}, **further)
    together = values(model, IDS, {"tensor": 4}, **further)
    alone = [values(model, IDS[first:last], {"tensor": 4}, **further) for first, last in GROUPS]
    ops = [*ATTENTION, *(ROUTING if gathered == "experts" else [])]
    for name in ops:
        assert same_bits(apart[name], torch.cat([group[name] for group in alone])), name
    # The tokens of a group decide where a ring's chunks end, so that it shows who was added up with whom.
    assert not same_bits(apart[ATTENTION[-1]], together[ATTENTION[-1]])


def test_what_is_gathered_sees_the_rows_of_all_groups(model: Model) -> None:
    """On CPU an fp32 GEMM of two or three rows adds in another order than one of seven: only one of both is right."""
    step: dict[str, Any] = {"schedule": {"decode": {"from": 7}}, "dtype": "fp32"}
    gate, experts, mlp = "layers.0.moe.gate", {"attention": 3, "gathered": "experts"}, {"attention": 3}
    alone = torch.cat([values(model, IDS[first:last], {}, **step)[gate] for first, last in GROUPS])
    assert same_bits(values(model, IDS, experts, **step)[gate], alone)
    assert not same_bits(values(model, IDS, mlp, **step)[gate], alone)


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ({"attention": 2, "tensor": 2}, {"q_proj": 2, "attend": 2, "experts": 4, "lm_head": 4}),
        ({"attention": 4}, {"q_proj": 1, "attend": 1, "experts": 4, "lm_head": 4}),
        ({"attention": 2, "tensor": 2, "gathered": "experts"}, {"q_proj": 2, "experts": 4, "lm_head": 2}),
        ({"attention": 4, "expert": 4}, {"q_proj": 1, "experts": 1, "lm_head": 4}),
    ],
)
def test_over_how_many_ranks_each_node_is_cut(
    model: Model, placement: dict[str, Any], expected: dict[str, int]
) -> None:
    where = Where(Path("test"))
    rules = placement_rules(Placement.model_validate(placement), where)
    plan = bind(model.graph, load_profile("hf-eager", where), "bf16", placement=rules)
    counts = {
        node.name.rpartition(".")[2]: plan.settings[node.name, "tensor"].value
        for node in plan.graph.nodes
        if (node.name, "tensor") in plan.settings
    }
    assert {name: counts[name] for name in expected} == expected


def test_which_nodes_are_apart(model: Model) -> None:
    graph = model.graph
    mlp, experts = computed_apart(graph, "mlp"), computed_apart(graph, "experts")
    assert {"layers[1].attention.norm", "layers[1].attention.reduce", "embed"} <= mlp
    assert not {"layers[1].moe.gate", "layers[1].moe.norm", "norm", "lm_head", "log_probs"} & mlp
    assert {node.name for node in graph.nodes} - experts == {
        f"layers[{layer}].moe.{name}" for layer in range(graph.layers) for name in ("experts", "combine", "reduce")
    }


def test_a_sequence_stays_with_its_group() -> None:
    """Its keys lie there: a step of fewer sequences deals nothing out anew."""
    late = Step(spans=(Span(1, 4, 5), Span(4, 4, 5), Span(6, 0, 3), Span(7, 0, 3)), shape="flat")
    group_of = dealt([rectangle(0, 6, 0, 4), late], 3)
    assert group_of == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2, 6: 0, 7: 1}


@pytest.mark.parametrize(
    ("placement", "schedule", "words"),
    [
        ({"gathered": "experts"}, None, "Add `attention: N`"),
        ({"attention": 2}, {"pack": {"length": 20}}, "Leave one of them out"),
        ({"attention": 2, "gathered": "heads"}, None, "gathered"),
    ],
)
def test_refusals(model: Model, placement: dict[str, Any], schedule: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        forward(model, IDS, placement=placement, schedule=schedule)
