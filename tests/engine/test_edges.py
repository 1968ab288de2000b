"""A consumer on an edge of its own is handed the same result, rounded otherwise; everybody else what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import torch_dtype
from moeparity.ops.registry import OPS
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import MicroBatches
from moeparity.plan.setting import edges_of

HERE = Where(Path(__file__))
RESIDUAL, NORM = "layers[1].attention.residual", "layers[1].moe.norm"
IDS = torch.randint(0, 512, (3, 7), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model(qwen3_moe: Path) -> Model:
    return open_model(qwen3_moe, device="cpu", residency="resident")


def plan(model: Model, **settings: str) -> Plan:
    return bind(model.graph, load_profile("hf-eager", HERE), "bf16", overrides(settings, HERE))


class Values:
    """Every tensor of every walker, in and out."""

    def __init__(self) -> None:
        self.outputs: dict[tuple[str, str], list[torch.Tensor]] = {}
        self.inputs: dict[tuple[str, str], list[torch.Tensor]] = {}

    def see(self, view: NodeView) -> None:
        for name, ports in view.outputs.items():
            self.outputs[name, view.node.name] = [blocks[0].tensor.clone() for blocks in ports]
        for name, operands in view.inputs.items():
            self.inputs[name, view.node.name] = [blocks[0].tensor.clone() for blocks in operands if blocks]


def walked(model: Model, **plans: Plan) -> tuple[Values, dict[str, int]]:
    values = Values()
    walkers = [Walker(name=name, plan=p, schedule=MicroBatches(3)) for name, p in plans.items()]
    counts = run(walkers, model.weights, IDS, [values])
    return values, dict(counts.evaluations)


def test_the_consumer_reads_the_sum_before_it_is_rounded(model: Model) -> None:
    values, counts = walked(model, plain=plan(model), edge=plan(model, **{f"{RESIDUAL}:output->{NORM}": "fp32"}))
    a, b = values.inputs["plain", RESIDUAL]
    (handed,) = values.inputs["edge", NORM]
    assert handed.dtype == torch.float32
    assert same_bits(handed, a.float() + b.float())
    assert same_bits(values.inputs["plain", NORM][0], (a.float() + b.float()).to(torch.bfloat16))
    stream = values.inputs["edge", "layers[1].moe.residual"][0]
    assert same_bits(stream, values.outputs["plain", RESIDUAL][0]), "the residual stream is stored as before"
    assert counts[RESIDUAL] == 2, "once as it is stored for both walkers, once as it is handed on"


def test_an_edge_that_says_what_is_stored_changes_nothing(model: Model) -> None:
    settings = {f"{RESIDUAL}:output->{NORM}": "bf16"}
    values, counts = walked(model, plain=plan(model), edge=plan(model, **settings))
    assert set(counts.values()) == {1}
    for node in model.graph.nodes:
        for plain_value, edge_value in zip(
            values.outputs["plain", node.name], values.outputs["edge", node.name], strict=True
        ):
            assert same_bits(plain_value, edge_value)


def test_where_all_consumers_are_handed_fp32_the_op_might_as_well_store_it(model: Model) -> None:
    on_edges = {f"{RESIDUAL}:output->{name}": "fp32" for name in (NORM, "layers[1].moe.residual")}
    values, counts = walked(model, edges=plan(model, **on_edges), stored=plan(model, **{f"{RESIDUAL}:output": "fp32"}))
    assert counts["lm_head"] == 1
    assert same_bits(values.outputs["edges", "lm_head"][0], values.outputs["stored", "lm_head"][0])


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_sites_on_edges_are_roundings_of_one_value(request: pytest.FixtureRequest, name: str) -> None:
    """What is stored equals what any edge is handed, rounded once more: for every op that declares such a site."""
    model = open_model(request.getfixturevalue(name), device="cpu", residency="resident")
    plain = plan(model)
    consumers = {}
    for node in model.graph.nodes:
        for site, consumer in edges_of(model.graph, node):
            if node.op.name in consumers or node.layer == 0:
                continue
            consumers[node.op.name] = consumer
            values, _ = walked(model, plain=plain, edge=plan(model, **{f"{node.name}:{site}->{consumer}": "fp32"}))
            (stored,) = values.outputs["plain", node.name][:1]
            handed = values.outputs["edge", node.name][1]
            assert handed.dtype == torch.float32
            assert same_bits(handed.to(torch_dtype("bf16")), stored), node.name
            assert not same_bits(handed, stored.float()), "or there would be nothing to test"
    declared = {op.name for op in OPS.values() for a in op.attributes if a.edge}
    assert set(consumers) == declared & {node.op.name for node in model.graph.nodes}
    assert name == "qwen3_moe" or "swiglu" in consumers
