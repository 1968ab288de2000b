"""Forced routes: what a walker takes over from another's routers, to the last bit, and what stays its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from moeparity.engine.footprint import estimate
from moeparity.engine.lockstep import Counts, run
from moeparity.engine.routes import IDS, ORDER, REPLAYED, WEIGHTS, Forced, Recorded, Replayed
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError, Where
from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import Value
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.region import regions
from moeparity.plan.schedule.steps import MicroBatches
from moeparity.plan.spec.variant_schema import Impl

HERE = Where(Path("test"))
MODELS = ("qwen3_moe", "qwen3_moe_mha", "deepseek_v3", "glm4_moe", "olmoe")
COARSE: dict[str, Value] = {"**.gate:output": "bf16", "**.router:scores": "bf16"}
FINE: dict[str, Value] = {"**.gate:output": "fp32"}
"""Scores so far apart that some tokens are routed otherwise in every fixture."""


@dataclass
class Seen:
    """Logits, and what every router gave and was given, all waves together."""

    parts: dict[tuple[str, str, int], list[torch.Tensor]] = field(default_factory=dict)
    logits_in: dict[tuple[str, str], list[torch.Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        if view.node.op.name not in {"router", "lm_head", "gate"}:
            return
        for walker in view.outputs:
            for port in range(len(view.node.outputs)):
                self.parts.setdefault((walker, view.node.name, port), []).append(view.tensor(walker, port).clone())

    def of(self, walker: str, node: str = "lm_head", port: int = 0) -> torch.Tensor:
        return torch.cat(self.parts[walker, node, port])


def opened(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def plan(model: Model, settings: dict[str, Value] | None = None, *, profile: str = "hf-eager") -> Plan:
    return bind(model.graph, load_profile(profile, HERE), "bf16", overrides(settings or {}, HERE))


def tokens(model: Model) -> torch.Tensor:
    return torch.randint(0, model.vocab_size, (6, 40), generator=torch.Generator().manual_seed(3))


def walk(model: Model, walkers: list[Walker]) -> tuple[Seen, Counts]:
    values = Seen()
    return values, run(walkers, model.weights, tokens(model), [values])


def forced(name: str, plan: Plan, replayed: Replayed, micro_batch: int = 6) -> Walker:
    return Walker(
        name=name, plan=plan, schedule=MicroBatches(micro_batch), routes=Forced(of="reference", replayed=replayed)
    )


def routers(model: Model) -> list[str]:
    return [node.name for node in model.graph.nodes if node.op.name == "router"]


def by_expert(ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    order = ids.argsort(-1)
    return ids.gather(-1, order), weights.gather(-1, order)


@pytest.mark.parametrize("replayed", REPLAYED)
@pytest.mark.parametrize("name", MODELS)
def test_equal_sides_stay_equal_on_every_rung(request: pytest.FixtureRequest, name: str, replayed: Replayed) -> None:
    model = opened(request.getfixturevalue(name))
    # Ties abound, so that an order of its own would show.
    same = plan(model, {"**.router:scores": "bf16"})
    walkers = [Walker(name="reference", plan=same, schedule=MicroBatches(6)), forced("same", same, replayed)]
    values, counts = walk(model, walkers)
    assert same_bits(values.of("same"), values.of("reference"))
    for router in routers(model):
        for port in (0, 1):
            assert same_bits(values.of("same", router, port), values.of("reference", router, port)), router
    expected = {node.name: 1 + (node.op.name == "router") for node in model.graph.nodes}
    assert counts.evaluations == expected, "beyond the routers nothing is computed twice"


@pytest.mark.parametrize("micro_batches", [(6, 6), (6, 4), (2, 3)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_rungs_take_over_what_they_say(
    request: pytest.FixtureRequest, name: str, micro_batches: tuple[int, int]
) -> None:
    model = opened(request.getfixturevalue(name))
    coarse = plan(model, COARSE)
    walkers = [Walker(name="reference", plan=plan(model, FINE), schedule=MicroBatches(micro_batches[0]))]
    walkers += [Walker(name="natural", plan=coarse, schedule=MicroBatches(micro_batches[1]))]
    walkers += [forced(rung, coarse, rung, micro_batches[1]) for rung in REPLAYED]
    values, _ = walk(model, walkers)
    for router in routers(model):
        theirs = [values.of("reference", router, port) for port in (0, 1)]
        assert all(same_bits(values.of(ORDER, router, port), theirs[port]) for port in (0, 1))
        for rung in (IDS, WEIGHTS):
            assert torch.equal(values.of(rung, router).sort(-1).values, theirs[0].sort(-1).values), rung
        ids, weights = by_expert(values.of(WEIGHTS, router, 0), values.of(WEIGHTS, router, 1))
        assert torch.equal(ids, by_expert(theirs[0], theirs[1])[0])
        assert same_bits(weights, by_expert(theirs[0], theirs[1])[1])
    first = routers(model)[0]
    assert torch.equal(values.of(IDS, first), values.of(WEIGHTS, first)), "both in the order of the own scores"
    flipped = {
        router: (values.of("natural", router).sort(-1).values != values.of("reference", router).sort(-1).values).any(-1)
        for router in routers(model)
    }
    assert any(bool(there.any()) for there in flipped.values()), "or nothing was forced"
    unflipped = ~flipped[first]
    assert bool(unflipped.any()), "or no token kept its own"
    assert torch.equal(values.of(IDS, first)[unflipped], values.of("natural", first)[unflipped])
    assert same_bits(values.of(IDS, first, 1)[unflipped], values.of("natural", first, 1)[unflipped])


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_mha", "deepseek_v3", "glm4_moe"])
def test_ids_are_weighted_by_the_own_scores(request: pytest.FixtureRequest, name: str) -> None:
    """Against an evaluation of the first router's logits, token by token."""
    model = opened(request.getfixturevalue(name))
    own_plan = plan(model, {"**.gate:output": "bf16", "**.router:slots": "sorted"})
    values, _ = walk(
        model,
        [Walker(name="reference", plan=plan(model, COARSE), schedule=MicroBatches(6)), forced("ids", own_plan, IDS)],
    )
    node = next(n for n in model.graph.nodes if n.op.name == "router")
    logits = values.of("ids", node.inputs[0]).flatten(0, 1).float()
    p, softmax = node.params, node.params["score"] == "softmax"
    scores = logits.softmax(-1) if softmax else logits.sigmoid()
    bias = torch.zeros(p["experts"])
    if "bias" in node.weights:
        bias = model.weights.checkpoint.tensor(node.weights["bias"].names[0]).float()
    ids, weights = (values.of("ids", node.name, port).flatten(0, 1) for port in (0, 1))
    theirs = values.of("reference", node.name).flatten(0, 1)
    for token in range(len(ids)):
        ranked = sorted(theirs[token].tolist(), key=lambda e: -float(scores[token, e] + bias[e]))
        assert ids[token].tolist() == ranked
        chosen = scores[token, ids[token]]
        if p["renormalize"]:
            chosen = chosen / (
                chosen.sum(-1, keepdim=True) + float(own_plan.settings[node.name, "renormalize_eps"].value)
            )
        assert same_bits(weights[token], (chosen * p["scale"]).to(weights.dtype))


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_a_difference_in_the_routers_alone_goes_with_their_routes(request: pytest.FixtureRequest, name: str) -> None:
    model = opened(request.getfixturevalue(name))
    coarse = plan(model, COARSE)
    walkers = [
        Walker(name="reference", plan=plan(model, FINE), schedule=MicroBatches(6)),
        *(forced(w, coarse, w) for w in REPLAYED),
    ]
    values, _ = walk(model, walkers)
    assert same_bits(values.of(ORDER), values.of("reference"))
    assert not same_bits(values.of(IDS), values.of("reference"))


def test_another_place_of_the_scale_scales_nothing_twice(deepseek_v3: Path) -> None:
    model = opened(deepseek_v3)
    later: dict[str, Value] = {"**.router:scaling": "output"}
    walkers = [
        Walker(name="reference", plan=plan(model), schedule=MicroBatches(6)),
        Walker(name="scaled later", plan=plan(model, later), schedule=MicroBatches(6)),
        forced(ORDER, plan(model, {**COARSE, **later}), ORDER),
    ]
    values, counts = walk(model, walkers)
    assert same_bits(values.of(ORDER, routers(model)[0], 1), values.of("scaled later", routers(model)[0], 1))
    assert not same_bits(values.of(ORDER, routers(model)[0], 1), values.of("reference", routers(model)[0], 1))
    first = next(node.name for node in model.graph.nodes if node.op.name == "combine")
    assert counts.evaluations[first] == 2, "forced and scaled later are one"


def test_a_hidden_router_has_no_routes_to_force(qwen3_moe: Path) -> None:
    model = opened(qwen3_moe)
    impl = Impl(nodes=["layers[1].moe.gate", "layers[1].moe.router"], call="kernels:router")
    hidden = bind(model.graph, load_profile("hf-eager", HERE), "bf16", regions=regions(model.graph, [impl], HERE))
    for forced_plan, source in ((hidden, plan(model)), (plan(model), hidden)):
        with pytest.raises(SpecError, match=r"kernels:router stands in place of layers\[1\]\.moe\.router"):
            run(
                [Walker(name="reference", plan=source, schedule=MicroBatches(6)), forced("own", forced_plan, IDS)],
                model.weights,
                tokens(model),
                [],
            )


def test_memory_is_estimated_for_forced_routes_too(qwen3_moe: Path) -> None:
    model = opened(qwen3_moe)
    reference = Walker(name="reference", plan=plan(model), schedule=MicroBatches(6))
    natural = Walker(name="natural", plan=plan(model, COARSE), schedule=MicroBatches(6))
    alone, together = (
        estimate([reference, second], model.weights, 6, 40).values
        for second in (natural, forced("forced", plan(model, COARSE), IDS))
    )
    assert together >= alone


@pytest.mark.parametrize("replayed", REPLAYED)
@pytest.mark.parametrize("name", MODELS)
def test_a_record_of_another_walker_is_that_walker(
    request: pytest.FixtureRequest, name: str, replayed: Replayed
) -> None:
    """In micro-batches of other sizes; tokens without a route, in the first rungs, keep what their router chooses."""
    model = opened(request.getfixturevalue(name))
    reference = Walker(name="reference", plan=plan(model, FINE), schedule=MicroBatches(6))
    of_reference, _ = walk(model, [reference])
    table = {
        value: of_reference.of("reference", node.name, port).flatten(0, 1)
        for node in model.graph.nodes
        if node.op.name == "router"
        for port, value in enumerate(node.values)
    }
    coarse = plan(model, COARSE)
    record = Walker(name="record", plan=coarse, schedule=MicroBatches(4), routes=Recorded(of=table, replayed=replayed))
    values, _ = walk(model, [reference, forced("forced", coarse, replayed, 4), record])
    for router in routers(model):
        assert all(same_bits(values.of("record", router, at), values.of("forced", router, at)) for at in (0, 1))
    assert same_bits(values.of("record"), values.of("forced"))
    if replayed == ORDER:
        return
    gaps = {value: rows.clone() for value, rows in table.items()}
    for value, rows in gaps.items():
        if rows.dtype == torch.int64:
            gaps[value][::2] = -1
    partly = replace(record, name="partly", routes=Recorded(of=gaps, replayed=replayed))
    natural = Walker(name="natural", plan=coarse, schedule=MicroBatches(4))
    values, _ = walk(model, [record, partly, natural])
    first = routers(model)[0]
    at_gaps = torch.zeros(240, dtype=torch.bool)
    at_gaps[::2] = True
    for port in (0, 1):
        of = {name: values.of(name, first, port).flatten(0, 1) for name in ("record", "partly", "natural")}
        assert same_bits(of["partly"][at_gaps], of["natural"][at_gaps])
        assert same_bits(of["partly"][~at_gaps], of["record"][~at_gaps])
