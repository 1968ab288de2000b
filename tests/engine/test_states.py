"""States that steps hand on: random schedules step after step, shadows, packs and slots that nobody reset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from moeparity.engine.liveness import Values as Alive
from moeparity.engine.lockstep import run
from moeparity.engine.walker import Walker, WalkersRefusedError
from moeparity.errors import SpecError
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile
from moeparity.plan.graph import Node
from moeparity.plan.region import regions
from moeparity.plan.schedule.steps import PHASES, Copy, MicroBatches, Schedule, Span, Step
from moeparity.plan.spec.variant_schema import Impl
from tests.engine.faulty import fault, plan_of
from tests.engine.stepwise import Stepwise
from tests.engine.test_schedules import HERE, SEEDS, TRIED, Draw, Values, differing, planned, walked
from tests.engine.test_schedules_together import DECODE, BruteForce
from tests.engine.test_schedules_together import planned as in_all_phases
from tests.gated.model import opened_gated, written

EXAMPLES = settings(max_examples=TRIED or 6)
BY_TOKEN = {"**.delta:form": "tokens", "**.delta:scale": "over"}
BORDERS = {"**.delta:step_state": "bf16", "**.conv:step_state": "fp16", "**.delta:block_state": "fp16"}
# What makes the bits of a token go by its sequence alone.
STEADY = {**BY_TOKEN, "**.conv:form": "taps", "**.conv:logistic": "exp", "**.delta:logistic": "exp"}
DELTAS, CONVS = ([f"layers[{i}].mixer.{name}" for i in range(2)] for name in ("delta", "conv"))
IDS = torch.arange(40, 58).view(2, 9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return opened_gated(written(tmp_path_factory.mktemp("gated")))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("chosen", [{}, {"**.delta:chunk": 3}, BY_TOKEN, {**BORDERS, "**.delta:chunk": 4}])
def test_as_if_step_after_step(model: Model, chosen: dict[str, Any], dtype: str) -> None:
    @EXAMPLES
    @given(SEEDS)
    def check(seed: int) -> None:
        draw = Draw(seed, f"states {chosen} {dtype}")
        plan, ids = planned(model, draw.schedule, "hf-eager", dtype, **chosen), draw.ids(model)
        ours = walked(model, [Walker(name="one", plan=plan, schedule=draw.schedule)], ids, draw.mask).of("one")
        assert differing(ours, Stepwise(model, plan, ids, draw.mask).run(draw.schedule)) == []

    check()


@pytest.mark.parametrize("chosen", [{}, STEADY, {**BORDERS, "**.delta:chunk": 2}])
def test_company_of_other_schedules(model: Model, chosen: dict[str, Any]) -> None:
    """The bits of each alone; identities, and inputs that agree, as they are seen token by token."""

    @EXAMPLES
    @given(SEEDS)
    def check(seed: int) -> None:
        draw = Draw(seed, f"states together {chosen}")
        plain, changed = in_all_phases(model, **chosen), in_all_phases(model, **{**chosen, "**.delta:output": "fp16"})
        walkers = [
            Walker(name="reference", plan=plain, schedule=MicroBatches(1 + seed % 3)),
            Walker(name="candidate", plan=changed, schedule=draw.schedule),
            Walker(name="third", plan=plain, schedule=draw.other_schedule),
            Walker(name="last", plan=in_all_phases(model, **chosen), schedule=draw.schedule),
        ]
        shadows = [replace(walkers[i], name=("shadow", i), inputs_of="reference") for i in (1, 2)]
        ids, values = draw.ids(model), Values()
        brute = BruteForce({walker.name: walker.schedule for walker in (*walkers, *shadows)})
        run([*shadows, *walkers], model.weights, ids, [values, brute], attention_mask=draw.mask)
        assert brute.compared
        assert brute.wrong == []
        for walker in walkers:
            assert differing(walked(model, [walker], ids, draw.mask).of(walker.name), values.of(walker.name)) == []

    check()


def sides(model: Model, reference: dict[str, Any], candidate: dict[str, Any], of: Any, to: Schedule) -> Values:
    """Both sides, and the candidate's numerics on the reference's inputs."""
    walkers = [
        Walker(name="reference", plan=in_all_phases(model, **reference), schedule=of),
        Walker(name="candidate", plan=in_all_phases(model, **candidate), schedule=to),
    ]
    return walked(model, [*walkers, replace(walkers[1], name="shadow", inputs_of="reference")], IDS)


def test_what_was_carried_over_a_border_is_not_local(model: Model) -> None:
    """A change in layer 0 comes to layer 1 by its inputs, and by the states that its earlier inputs left."""
    values = sides(model, {}, {"layers[0].mixer.delta:beta": "fp32"}, DECODE, DECODE)
    reference, candidate, shadow = (values.of(name) for name in ("reference", "candidate", "shadow"))
    for node in (DELTAS[1], CONVS[1]):
        assert not same_bits(candidate[node][:, 6:], reference[node][:, 6:])
        assert same_bits(shadow[node], reference[node])


@pytest.mark.parametrize("chosen", [{}, STEADY])
def test_a_shadow_begins_from_the_states_of_a_forward_that_has_no_borders(model: Model, chosen: dict[str, Any]) -> None:
    values = sides(model, chosen, chosen, MicroBatches(2), DECODE)
    reference, shadow = values.of("reference"), values.of("shadow")
    for node in (*CONVS, *DELTAS):
        alike = torch.isclose(shadow[node].float(), reference[node].float(), rtol=2e-2, atol=1e-4)
        assert bool(alike.all()), node
        assert same_bits(shadow[node], reference[node]) or not chosen, node


def test_a_shadow_shows_what_a_border_rounds_once(model: Model) -> None:
    """The reference's own state before each step, rounded as the candidate stores it; never what that made of it."""
    values = sides(model, {}, {"**.delta:step_state": "bf16"}, DECODE, DECODE)
    reference, candidate, shadow = (values.of(name) for name in ("reference", "candidate", "shadow"))
    plan, node = in_all_phases(model), next(node for node in model.graph.nodes if node.name == DELTAS[0])
    state, accumulated = None, 0
    for step in DECODE.steps:
        first, last = step.spans[0].first, step.spans[0].last
        _, after = called(model, plan, node, reference, first, last, state)
        rounded = None if state is None else state.bfloat16().float()
        expected, _ = called(model, plan, node, reference, first, last, rounded)
        assert same_bits(shadow[node.name][:, first:last], expected)
        accumulated += int((candidate[node.name][:, first:last] != expected).sum())
        state = after
    assert accumulated
    assert not same_bits(shadow[node.name], reference[node.name])


def called(
    model: Model, plan: Plan, node: Node, values: dict[str, Tensor], first: int, last: int, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What a node's kernel makes of some tokens of both sequences, and the state that it leaves."""
    reads = [values[name][:, first:last].contiguous() for name in node.inputs]
    at, w = node.op.settings(plan.active(node)), model.weights.node(node, "bf16")
    with torch.inference_mode():
        out = node.op.load()(*reads, w=w, p=node.params, at=at, state=state, ends=(last - first,))
    return out[0], out[1]


PACK = Schedule(steps=(Step(spans=(Span(1, 0, 9), Span(0, 0, 9)), shape="packed"),))
SERVED = Schedule(
    steps=(
        Step(spans=(Span(1, 0, 7),), shape="flat", phase="prefill"),
        Step(spans=(Span(1, 7, 9),), shape="flat", phase="verify"),
        Step(spans=(Span(0, 0, 9),), shape="flat", phase="prefill"),
    )
)


@pytest.mark.parametrize("schedule", [PACK, SERVED], ids=["pack", "slot"])
@pytest.mark.parametrize("name", ["conv", "delta"])
def test_a_state_that_nobody_reset_is_the_last_ones(model: Model, name: str, schedule: Schedule) -> None:
    nodes = [f"layers[0].mixer.{name}"]
    plans = {"fresh": plan_of(model), "faulty": plan_of(model, [fault("state-unreset", nodes[0])])}
    plans = {key: plan.at_phase("forward") for key, plan in plans.items()}
    if schedule is SERVED:
        plans = {key: replace(plan, phases=PHASES) for key, plan in plans.items()}
    walkers = [Walker(name=key, plan=plan, schedule=schedule) for key, plan in plans.items()]
    values = walked(model, walkers, IDS)
    fresh, faulty = values.of("fresh"), values.of("faulty")
    node = next(node for node in model.graph.nodes if node.name == nodes[0])
    assert same_bits(faulty[node.name][1], fresh[node.name][1])
    state = None
    for first, last in ((0, 9),) if schedule is PACK else ((0, 7), (7, 9)):
        of_first = {name: value[1:] for name, value in fresh.items()}
        _, state = called(model, plans["fresh"], node, of_first, first, last, state)
    of_second = {name: value[:1] for name, value in fresh.items()}
    expected, _ = called(model, plans["fresh"], node, of_second, 0, 9, state)
    assert same_bits(faulty[node.name][:1], expected)
    assert not same_bits(faulty[node.name][0], fresh[node.name][0])


def test_sequences_apart_leave_each_other_no_slot(model: Model) -> None:
    """A forward keeps no states, and a batch of `generate` has a cache of its own."""
    plan = plan_of(model, [fault("state-unreset", DELTAS[0])])
    walkers = [
        Walker(name=name, plan=of, schedule=MicroBatches(1)) for name, of in (("a", plan), ("b", plan_of(model)))
    ]
    values = walked(model, walkers, IDS)
    assert differing(values.of("a"), values.of("b")) == []


def test_a_prefix_that_is_computed_later_is_refused(model: Model) -> None:
    late = Step(spans=(Span(1, 4, 9), Span(0, 0, 9)), shape="flat", phase="prefill", copies=(Copy(1, 0, 4, 0, 0),))
    walker = Walker(name="one", plan=in_all_phases(model), schedule=Schedule(steps=(late,)))
    with pytest.raises(WalkersRefusedError, match=r"mixer.conv:block_state: sequence 1 goes on at token 4 .* later"):
        walked(model, [walker], IDS)


def second_key(*inputs: Tensor, node: Any) -> Tensor:
    return inputs[2]


def test_a_function_in_place_of_a_state_is_refused_where_steps_hand_one_on(model: Model) -> None:
    impl = regions(model.graph, [Impl(nodes=[DELTAS[0]], call="own:rule")], HERE)
    plan = bind(model.graph, load_profile("hf-eager", HERE), "bf16", regions=impl, phases=PHASES)
    walker = Walker(name="one", plan=plan, schedule=MicroBatches(2), functions={"own:rule": second_key})
    assert DELTAS[0] in walked(model, [walker], IDS).of("one")
    with pytest.raises(SpecError, match=r"impl own:rule stands in place of layers\[0\].mixer.delta, op gated_delta"):
        walked(model, [replace(walker, schedule=DECODE)], IDS)
    rival = Walker(name="other", plan=in_all_phases(model), schedule=DECODE)
    shadow = replace(rival, name="shadow", inputs_of="one")
    values = walked(model, [walker, rival, shadow], IDS).of("shadow")
    assert DELTAS[0] not in values
    assert DELTAS[1] in values


def test_states_are_in_the_estimate(model: Model) -> None:
    """A row for each border of each sequence, of the side's own steps and of those of its shadow."""
    reference = Walker(name="one", plan=in_all_phases(model), schedule=MicroBatches(2))
    shadow = replace(reference, name="shadow", schedule=DECODE, inputs_of="one")
    of_walkers = ([reference], [replace(reference, schedule=DECODE)], [reference, shadow])
    alone, decoding, shadowed = (Alive(walkers, model.graph, 2, 9).state_bytes for walkers in of_walkers)
    rows, numbers = 2 * 3, {DELTAS[0]: 4 * 24 * 16, CONVS[0]: 160 * 3}
    for node, count in numbers.items():
        assert decoding[node] - alone[node] == 2 * rows * count * 4
        assert shadowed[node] >= 2 * decoding[node]


@pytest.mark.parametrize("form", ["chunks", "tokens"])
@pytest.mark.parametrize("of", [MicroBatches(2), DECODE], ids=["forward", "decode"])
def test_the_oracle_is_exact_to_fp64(model: Model, of: Schedule | MicroBatches, form: str) -> None:
    """Against the definition, token after token, in numpy."""
    plan = in_all_phases(model, "oracle", **{"**.delta:form": form, "**.delta:chunk": 4})
    values = walked(model, [Walker(name="one", plan=plan, schedule=of)], IDS).of("one")
    read = {name.removeprefix("layers[1].mixer."): value.numpy() for name, value in values.items()}
    conv, delta = (
        {port: w.double().numpy() for port, w in model.weights.node(node, "bf16").items()}
        for node in model.graph.nodes
        if node.name in (CONVS[1], DELTAS[1])
    )
    padded = np.pad(read["qkv"], ((0, 0), (3, 0), (0, 0)))
    sums = sum(padded[:, tap : tap + 9] * conv["weight"][:, 0, tap] for tap in range(4))
    np.testing.assert_allclose(read["conv"], sums / (1 + np.exp(-sums)), rtol=1e-12, atol=1e-15)
    state = np.zeros((2, 4, 24, 16))
    for token in range(9):
        q, k, v, a, b = (read[name][:, token] for name in ("split.q", "split.k", "split.v", "a", "b"))
        q, k = (np.repeat(x.reshape(2, 2, 24), 2, 1) for x in (q, k))
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        state = state * np.exp(-np.exp(delta["a_log"]) * np.log1p(np.exp(a + delta["dt_bias"])))[..., None, None]
        change = (v.reshape(2, 4, 16) - np.einsum("bhkv,bhk->bhv", state, k)) / (1 + np.exp(-b))[..., None]
        state = state + k[..., None] * change[:, :, None]
        expected = np.einsum("bhkv,bhk->bhv", state, q) / np.sqrt(24)
        np.testing.assert_allclose(read["delta"][:, token], expected.reshape(2, 64), rtol=1e-11, atol=1e-14)
