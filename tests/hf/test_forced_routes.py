"""Forced expert ids against transformers run live, its routers patched to take the same ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from moeparity.engine.lockstep import run
from moeparity.engine.routes import IDS, Forced
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import MicroBatches
from tests.hf.compare import DTYPES, PROFILES, opened, tokens
from tests.hf.reference import load
from tests.small_models import Shallow

HERE = Where(Path("test"))
OTHER = {"**.gate:output": "bf16", "**.router:scores": "bf16"}
"""A reference with coarse scores, so that many tokens are routed otherwise."""


class Seen:
    def __init__(self) -> None:
        self.logits: dict[str, torch.Tensor] = {}
        self.ids: dict[str, list[torch.Tensor]] = {}

    def see(self, view: NodeView) -> None:
        for walker in view.outputs:
            if view.node.op.name == "router":
                self.ids.setdefault(walker, []).append(view.tensor(walker).flatten(0, 1).clone())
            if view.node.op.name == "lm_head":
                self.logits[walker] = view.tensor(walker).clone()


@contextmanager
def replaying(model: PreTrainedModel, routes: list[torch.Tensor]) -> Iterator[None]:
    """transformers' routers with these ids, in the order of their own probabilities; all else as they do it."""
    routers = [m for m in model.modules() if type(m).__name__ == "Qwen3MoeTopKRouter"]
    assert len(routers) == len(routes)

    def patched(router: Any, ids: torch.Tensor) -> Any:
        def forward(hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            logits = F.linear(hidden_states.reshape(-1, router.hidden_dim), router.weight)
            probabilities = F.softmax(logits, dtype=torch.float, dim=-1)
            own_ids = torch.topk(probabilities, router.top_k, dim=-1)[1]
            ascending = ids.sort(-1).values
            order = torch.topk(probabilities.gather(1, ascending), router.top_k, dim=-1)[1]
            same = (own_ids.sort(-1).values == ascending).all(-1, keepdim=True)
            chosen = torch.where(same, own_ids, ascending.gather(1, order))
            values = probabilities.gather(1, chosen)
            if router.norm_topk_prob:
                values /= values.sum(dim=-1, keepdim=True)
            return logits, values.to(logits.dtype), chosen

        return forward

    for router, ids in zip(routers, routes, strict=True):
        router.forward = patched(router, ids)
    try:
        yield
    finally:
        for router in routers:
            del router.forward


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe_mha"])
def test_the_same_ids_forced_give_the_same_bits(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    folder = shallow(name, 2)
    model, ids = opened(folder), tokens(300, (4, 33))
    own_plan = bind(model.graph, load_profile(profile, HERE), dtype)
    reference_plan = bind(model.graph, load_profile("hf-eager", HERE), "bf16", overrides(OTHER, HERE))
    walkers = [
        Walker(name="reference", plan=reference_plan, schedule=MicroBatches(4)),
        Walker(name="natural", plan=own_plan, schedule=MicroBatches(4)),
        Walker(name="forced", plan=own_plan, schedule=MicroBatches(4), routes=Forced(of="reference", replayed=IDS)),
    ]
    values = Seen()
    run(walkers, model.weights, ids, [values])
    flipped = [
        (a.sort(-1).values != b.sort(-1).values).any()
        for a, b in zip(values.ids["natural"], values.ids["reference"], strict=True)
    ]
    assert any(flipped), "or no id was forced upon anybody"
    live = load(folder, profile, DTYPES[dtype])
    with torch.no_grad():
        with replaying(live, values.ids["reference"]):
            forced = live(ids, use_cache=False).logits
        natural = live(ids, use_cache=False).logits
    assert same_bits(values.logits["forced"], forced)
    assert same_bits(values.logits["natural"], natural)
    assert not same_bits(forced, natural)
