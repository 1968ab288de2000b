"""Draws of legal orders are legal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.study import Study
from moeparity.engine.lockstep import run
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.evidence.envelope.legal_orders import Call, orders_of
from moeparity.plan.schedule.steps import MicroBatches
from moeparity.plan.sides import REFERENCE
from tests.planted.places import random_tokens, write_recipe

SUMS = {"rms_norm", "linear", "gate", "lm_head", "experts", "combine"}


class Drawn:
    """Draws every node anew, and notes by op how far the draws lie from the value and how many bits they change."""

    def __init__(self, study: Study) -> None:
        self.study, self.furthest, self.changed = study, dict[str, float](), dict[str, int]()

    def see(self, view: NodeView) -> None:
        node, bound = view.node, self.study.reference.plan
        inputs = [None if b is None else assemble(b, view.batch) for b in view.inputs[REFERENCE]]
        at = node.op.settings({**bound.told_to(node), **bound.active(node)})
        weights = self.study.model.weights.node(node, bound.dtype_of(node.name))
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
    study = prepare(recipe, device="cpu", options=Options(attribution=False))
    drawn = Drawn(study)
    walker = Walker(name=REFERENCE, plan=study.reference.plan, schedule=MicroBatches(2))
    run([walker], study.model.weights, study.tokens.input_ids, [drawn])
    assert {*SUMS, attends} <= drawn.furthest.keys()
    # fp32 rounds at 6e-8; the sums here have at most 96 leaves, and attention two after each other.
    assert max(drawn.furthest.values()) < 5e-6
    assert all(drawn.changed[op] > 0 for op in (*SUMS, attends))
