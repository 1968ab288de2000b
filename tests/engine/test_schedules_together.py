"""Walkers of different schedules in one pass: the bits of each alone, identities and inputs that agree cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from moeparity.engine.lockstep import run
from moeparity.engine.routes import ORDER, REPLAYED, WEIGHTS, Forced
from moeparity.engine.values import Block, assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.inputs.model import Model
from moeparity.numerics.bits import int_view, same_bits
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.changed import with_settings_in
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.graph import SOURCES
from moeparity.plan.region import regions
from moeparity.plan.schedule.steps import PHASES, MicroBatches, Schedule, Span, Step, rectangle
from moeparity.plan.spec import reader
from moeparity.plan.spec.variant_schema import Impl
from tests.engine.stepwise import Stepwise
from tests.engine.test_schedules import HERE, SEEDS, TRIED, Draw, Values, differing, walked
from tests.opened import opened

DECODE = Schedule(steps=(rectangle(0, 2, 0, 6, "prefill"), *(rectangle(0, 2, t, t + 1, "decode") for t in range(6, 9))))
IDS = torch.arange(18).view(2, 9)
MASK = torch.ones(2, 9, dtype=torch.bool)


def planned(model: Model, profile: str = "hf-eager", **choices: Any) -> Plan:
    """In every phase, as plans of one pass are."""
    return bind(model.graph, load_profile(profile, HERE), "bf16", overrides(choices, HERE), phases=PHASES)


@dataclass
class BruteForce:
    """Holds what a view says of two walkers to their bits, token by token."""

    schedules: dict[str, Schedule | MicroBatches]
    wrong: list[object] = field(default_factory=list)
    compared: int = 0

    def see(self, view: NodeView) -> None:
        names = [name for name in self.schedules if view.ran(name)]
        cells = view.grid.cell_of[slice(*view.wave)]
        for a, b in ((a, b) for i, a in enumerate(names) for b in names[i + 1 :]):
            ports = [_equal(view, x, y) for x, y in zip(view.outputs[a], view.outputs[b], strict=True)]
            agree = torch.ones(cells.shape, dtype=torch.bool)
            read = zip(view.node.ports, view.node.inputs, view.inputs[a], view.inputs[b], strict=True)
            for port, value, x, y in read:
                # What the graph itself is given is no input of an op.
                if x is not None and y is not None and value not in SOURCES:
                    equal = _equal(view, x, y)
                    agree &= self._before(view, equal, a, b) if view.node.op.tokens.reads_earlier(port) else equal
            ids, inputs = zip(view.output_ids(a), view.output_ids(b), strict=True), view.inputs_agree(a, b)
            for cell, (id_a, id_b), inputs_agree in zip(view.cells, ids, inputs, strict=True):
                tokens_here = cells == cell
                agreement = [x == y for x, y in zip(id_a, id_b, strict=True)] + [inputs_agree]
                true = [bool(equal[tokens_here].all()) for equal in ports] + [bool(agree[tokens_here].all())]
                self.compared += 1
                if agreement != true:
                    self.wrong.append((view.node.name, a, b, cell, agreement, true))

    def _before(self, view: NodeView, equal: Tensor, *walkers: str) -> Tensor:
        """Equal at a token and at all that it sees."""
        result, first = equal.int().cummin(-1).values.bool(), view.wave[0]
        for step in (step for name in walkers for step in getattr(self.schedules[name], "steps", ())):
            if step.shape == "packed" and not step.isolated and first <= step.spans[0].sequence < view.wave[1]:
                so_far = True
                for sequence, t in ((s.sequence - first, t) for s in step.spans for t in range(s.first, s.last)):
                    so_far = so_far and bool(equal[sequence, t])
                    result[sequence, t] &= so_far
        return result


def _equal(view: NodeView, a: Sequence[Block], b: Sequence[Block]) -> Tensor:
    """[B, T]: whether all bits at a token are the same."""
    x, y = (assemble(blocks, view.batch).movedim(blocks[0].axis, 1).contiguous() for blocks in (a, b))
    if x.dtype != y.dtype or x.shape != y.shape:
        return torch.zeros(x.shape[:2], dtype=torch.bool)
    return (int_view(x) == int_view(y)).flatten(2).all(-1) if x.dim() > 2 else int_view(x) == int_view(y)


@pytest.mark.parametrize("profile", ["hf-eager", "vllm", "vllm-batch-invariant"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "qwen3"])
def test_company_of_other_schedules(request: pytest.FixtureRequest, name: str, profile: str) -> None:
    model = opened(request.getfixturevalue(name))
    choices = {"layers[1].moe.router:weights": "fp32"} if name == "qwen3_moe" else {"layers[1].*.norm:output": "fp32"}

    @settings(max_examples=TRIED or 1)
    @given(SEEDS)
    def check(seed: int) -> None:
        draw = Draw(seed, f"{name} {profile} together")
        plain, changed = planned(model, profile), planned(model, profile, **choices)
        walkers = [
            Walker(name="reference", plan=plain, schedule=MicroBatches(1 + seed % 3)),
            Walker(name="candidate", plan=changed, schedule=draw.schedule),
            Walker(name="third", plan=plain, schedule=draw.other_schedule),
            Walker(
                name="wide head",
                plan=planned(model, profile, **{"lm_head:output": "fp32"}),
                schedule=draw.other_schedule,
            ),
        ]
        shadow = replace(walkers[1], name="shadow", inputs_of="reference")
        ids, values = draw.ids(model), Values()
        brute = BruteForce({walker.name: walker.schedule for walker in (*walkers, shadow)})
        run([shadow, *walkers], model.weights, ids, [values, brute], attention_mask=draw.mask)
        assert brute.compared
        assert brute.wrong == []
        for walker in walkers:
            assert differing(walked(model, [walker], ids, draw.mask).of(walker.name), values.of(walker.name)) == []

    check()


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_routes_of_another_schedule(request: pytest.FixtureRequest, name: str) -> None:
    """Made by the other's routers, in the phases in which the other makes them."""
    model = opened(request.getfixturevalue(name))
    plain = planned(model)
    coarse = planned(model, **{"**.router:scores": "bf16"})
    places = [place for place in plain.settings if place[1] == "scores" and place[0].endswith("router")]
    in_decode = with_settings_in(plain, {"decode": places}, coarse)
    routers = [node for node in model.graph.nodes if node.op.role.routes]
    for theirs, ours in ((MicroBatches(2), DECODE), (DECODE, DECODE), (DECODE, MicroBatches(1))):
        reference = Walker(name="reference", plan=in_decode, schedule=theirs)
        forced = [
            Walker(name=rung, plan=plain, schedule=ours, routes=Forced(of="reference", replayed=rung))
            for rung in REPLAYED
        ]
        values = walked(model, [*forced, reference], IDS)
        truth = walked(model, [reference], IDS).of("reference")
        assert differing(truth, values.of("reference")) == []
        for node in routers:
            chosen, weights = (truth[value] for value in node.values)
            assert all(same_bits(values.of(ORDER)[value], truth[value]) for value in node.values), node.name
            for rung in REPLAYED:
                assert torch.equal(values.of(rung)[node.values[0]].sort(-1).values, chosen.sort(-1).values), rung
            own_ids, own_weights = (values.of(WEIGHTS)[value] for value in node.values)
            assert same_bits(own_weights.gather(-1, own_ids.argsort(-1)), weights.gather(-1, chosen.argsort(-1)))


def test_what_a_router_tells_in_one_phase(deepseek_v3: Path) -> None:
    """Two walkers whose combines differ in nothing but what the router of one phase leaves to them."""
    model = opened(deepseek_v3)
    plain, later = planned(model), planned(model, **{"**.router:scaling": "output"})
    places = [place for place in plain.settings if place[1] == "scaling" and place[0].endswith("router")]
    mixed = with_settings_in(plain, {"decode": places}, later)
    walkers = [Walker(name="plain", plan=plain, schedule=DECODE), Walker(name="mixed", plan=mixed, schedule=DECODE)]
    values = walked(model, walkers, IDS)
    for walker in walkers:
        truth = Stepwise(model, walker.plan, IDS, MASK).run(DECODE)
        assert differing(values.of(walker.name), truth) == []
    combine = next(node.name for node in model.graph.nodes if node.op.name == "combine")
    assert not same_bits(values.of("plain")[combine][:, 6:], values.of("mixed")[combine][:, 6:])


def _own_linear(x: Tensor, *, node: Any) -> Tensor:
    (weight,) = node.weights.values()
    return F.linear(x.flip(-1), weight.flip(-1))


FLAT = Schedule(
    steps=(
        Step(spans=(Span(1, 0, 5), Span(0, 0, 2)), shape="flat", phase="prefill", padding=1, scored=(0,)),
        Step(spans=(Span(0, 2, 9), Span(1, 5, 6)), shape="flat", phase="chunk"),
        Step(spans=(Span(1, 6, 9),), shape="flat", phase="verify", scored=(), verified=(0,)),
    )
)


@pytest.mark.parametrize("schedule", [DECODE, FLAT], ids=["decode", "flat"])
def test_partial_sums_edges_and_functions_step_by_step(qwen3_moe: Path, schedule: Schedule) -> None:
    model = opened(qwen3_moe)
    edge = {"layers[*].attention.residual:output->rms_norm": "fp32"}
    impl = [Impl(nodes=["layers[1].moe.gate"], call="own:linear")]
    plan = bind(
        model.graph,
        load_profile("hf-eager", HERE),
        "bf16",
        overrides(edge, HERE),
        placement=placement_rules(reader.read_placement({"tensor": 2}, HERE), HERE),
        phases=PHASES,
    )
    own_plan = bind(
        model.graph, load_profile("hf-eager", HERE), "bf16", regions=regions(model.graph, impl, HERE), phases=PHASES
    )
    calls: list[tuple[int, ...]] = []

    def linear(x: Tensor, *, node: Any) -> Tensor:
        calls.append(tuple(x.shape[:2]))
        return _own_linear(x, node=node)

    walkers = [
        Walker(name="cut", plan=plan, schedule=schedule),
        Walker(name="own", plan=own_plan, schedule=schedule, functions={"own:linear": linear}),
    ]
    values = walked(model, walkers, IDS)
    assert differing(values.of("cut"), Stepwise(model, plan, IDS, MASK).run(schedule)) == []

    def kernel(x: Tensor, *, w: Any, p: Any, at: Any) -> Tensor:
        return F.linear(x.flip(-1), w["weight"].flip(-1))

    by_hand = Stepwise(model, own_plan, IDS, MASK, functions={"layers[1].moe.gate": kernel})
    assert differing(values.of("own"), by_hand.run(schedule)) == []
    assert len(calls) == len(schedule.steps), "a function is called once for each step"
    assert not same_bits(values.of("own")["lm_head"], values.of("cut")["lm_head"])
