"""Draws of legal orders are legal, and the bands they make are what a plain evaluation says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from moeparity.bisection.envelope.legal_orders import Call, orders_of
from moeparity.bisection.prepare import Options, Plan, prepare
from moeparity.engine.lockstep import run
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.numerics.band import SLACK, band
from moeparity.plan.schedule.steps import MicroBatches
from moeparity.plan.sides import REFERENCE
from tests.planted.places import random_tokens, write_recipe

SUMS = {"rms_norm", "linear", "gate", "lm_head", "experts", "combine"}


class Drawn:
    """Draws every node anew, and notes by op how far the draws lie from the value and how many bits they change."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.furthest, self.changed = plan, dict[str, float](), dict[str, int]()

    def see(self, view: NodeView) -> None:
        node, bound = view.node, self.plan.reference.plan
        inputs = [None if b is None else assemble(b, view.batch) for b in view.inputs[REFERENCE]]
        at = node.op.settings({**bound.told_to(node), **bound.active(node)})
        weights = self.plan.model.weights.node(node, bound.dtype_of(node.name))
        draw = orders_of(Call(node=node, inputs=inputs, weights=weights, at=at))
        if draw is None or node.op.name == "router":
            return
        assert not isinstance(draw, str)
        value = assemble(view.outputs[REFERENCE][0], view.batch)
        for seed in range(2):
            drawn = draw(seed)
            assert (drawn.shape, drawn.dtype) == (value.shape, value.dtype), node.name
            assert torch.equal(drawn, draw(seed)), node.name
            far = ((drawn - value).abs().amax(-1) / value.abs().amax(-1)).max()
            self.furthest[node.op.name] = max(self.furthest.get(node.op.name, 0.0), float(far))
            self.changed[node.op.name] = self.changed.get(node.op.name, 0) + int((drawn != value).sum())


@pytest.mark.parametrize(
    ("name", "profile", "attends"),
    [
        ("qwen3_moe", "hf-eager", "attention"),
        ("qwen3_moe", "hf-default", "attention"),
        ("deepseek_v3", "hf-eager", "mla"),
        ("deepseek_v3", "hf-default", "mla"),
    ],
)
def test_draws_are_the_same_sums_in_other_orders(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, profile: str, attends: str
) -> None:
    side = {"profile": profile, "dtype": "fp32", "micro_batch": 2}
    recipe = write_recipe(tmp_path, request.getfixturevalue(name), {"input_ids": random_tokens(2, 20)}, side, side)
    plan = prepare(recipe, device="cpu", options=Options(attribution=False))
    drawn = Drawn(plan)
    walker = Walker(name=REFERENCE, plan=plan.reference.plan, schedule=MicroBatches(2))
    run([walker], plan.model.weights, plan.tokens.input_ids, [drawn])
    assert {*SUMS, attends} <= drawn.furthest.keys()
    # fp32 rounds at 6e-8; the sums here have at most 96 leaves, and attention two after each other.
    assert max(drawn.furthest.values()) < 5e-6
    assert all(drawn.changed[op] > 0 for op in (*SUMS, attends))


def test_the_band_by_hand() -> None:
    own = torch.tensor([[1.0, 2.0, 4.0, 0.0, 3.0, 1.0, math.nan]])
    draws = [
        torch.tensor([[1.5, 2.0, 4.0, 0.0, 3.0, 1.0, math.nan]]),
        torch.tensor([[1.5, 2.0, 5.0, 0.0, 3.0, 1.0, math.nan]]),
        torch.tensor([[0.5, 2.0, 4.0, 0.0, 3.0, 1.0, math.nan]]),
    ]
    #                    inside, equal, above 5, -0, below 3, equal, no NaN any more
    other = torch.tensor([[1.25, 2.0, 6.0, -0.0, 2.5, 1.0, 1.0]])
    found = band(own, other, draws, tokens=1)
    assert (found.elements, found.differing, found.outside, found.varying) == (7, 5, 3, 2)
    assert found.own_outside == (0, 1, 1)
    assert found.furthest == math.inf
    finite = band(own[:, :-1], other[:, :-1], [draw[:, :-1] for draw in draws], tokens=1)
    # 6 is 1 above the band; the greatest of the row, 5, has the spacing of 4.
    assert (finite.outside, finite.furthest) == (2, 1 / (4 * torch.finfo(torch.float32).eps))


def test_values_of_another_dtype_lie_between_the_values_of_a_band() -> None:
    own = torch.linspace(1, 2, 200).reshape(20, 10)
    found = band(own.bfloat16(), own, [own.bfloat16()] * 4, tokens=20)
    assert found.differing == found.outside == int((own != own.bfloat16().float()).sum())
    assert found.furthest <= 0.5
    assert not found.inside
    one = band(own, own, [own] * 4, tokens=20)
    assert (one.differing, one.outside, one.inside) == (0, 0, True)


def test_a_further_draw_is_inside_and_a_coarser_sum_is_not() -> None:
    leaves = torch.randn(256, 64, 32, generator=torch.Generator().manual_seed(0))
    sums = [leaves[:, torch.randperm(64, generator=torch.Generator().manual_seed(i))] for i in range(10)]
    drawn = [_sequential(x) for x in sums]
    further = band(drawn[0], drawn[1], drawn[2:], tokens=256)
    assert further.differing > 4000
    assert 0 < further.outside <= SLACK * max(further.own_outside) + SLACK
    assert further.inside
    coarse = band(drawn[0], _sequential(leaves.bfloat16()).float(), drawn[2:], tokens=256)
    assert coarse.outside > 0.9 * coarse.elements
    assert not coarse.inside


def _sequential(x: torch.Tensor) -> torch.Tensor:
    total = x[:, 0]
    for i in range(1, x.shape[1]):
        total = total + x[:, i]
    return total
