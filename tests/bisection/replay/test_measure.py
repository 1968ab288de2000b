"""The replay ladder of whole bisections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moeparity import bisect
from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.replay.data import Replay
from moeparity.bisection.report import Report
from moeparity.engine.routes import IDS, LOGITS, ORDER, REPLAYED, WEIGHTS
from tests.engine.test_functions import recipe_with
from tests.planted.places import random_tokens, write_recipe

ROUTER = {"layers[*].moe.router:scores": "bf16", "layers[*].moe.gate:output": "fp32"}
COMBINE = {"layers[*].moe.combine:accumulate": "fp32"}
ON = Options(replay=True)
NODES = ["layers[1].moe.gate", "layers[1].moe.router"]
GATE_AND_ROUTER = """
def gate_and_router(x, *, node):
    logits = x @ node.weights["gate.weight"].T
    weights, ids = logits.float().softmax(-1).topk(4)
    return ids, (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
"""


def recipe(folder: Path, checkpoint: Path, settings: dict[str, Any], *, vocab: int = 512, **more: Any) -> Path:
    tokens = {"input_ids": random_tokens(6, 16, vocab=vocab)}
    return write_recipe(folder, checkpoint, tokens, {"micro_batch": 6}, {"set": settings, **more})


def ladder(report: Report) -> Replay:
    assert report.replay is not None
    return report.replay


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_a_fault_in_the_routers_is_gone_once_their_routes_are(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    settings = {"layers[-1].moe.router:scores": "bf16"}
    replay = ladder(bisect(recipe(tmp_path, request.getfixturevalue(name), settings), device="cpu", options=ON))
    assert [rung.forced for rung in replay.rungs] == ["natural", IDS, WEIGHTS, ORDER, LOGITS]
    natural, ids, _, order, logits = replay.rungs
    assert natural.kl > 0
    assert (order.kl, order.k3, order.max_abs_delta, order.exact) == (0.0, 0.0, 0.0, True)
    assert (order.set_flips, order.slot_flips) == (0.0, 0.0)
    assert ids.set_flips == 0.0
    assert "Then every bit of the logits is the reference's" in replay.reading[-2]
    # Its own routers are at fault, so that the reference's logits buy nothing but what layers above change in them.
    assert (logits.kl, logits.set_flips) == (natural.kl, natural.set_flips)
    assert "KL stays as it is: the routers' own numerics decide" in replay.reading[-1]


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_routers_without_a_fault_make_the_reference_s_routes_of_its_logits(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    settings = {"layers[*].attention.rope:products": "fp32", "layers[*].moe.gate:output": "fp32"}
    path = recipe(tmp_path, request.getfixturevalue(name), settings, micro_batch=2)
    *_, order, logits = ladder(bisect(path, device="cpu", options=ON)).rungs
    assert logits.kl_change_low != 0
    assert replace(logits, forced=ORDER, kl_change_low=0.0, kl_change_high=0.0) == replace(
        order, kl_change_low=0.0, kl_change_high=0.0
    )


def test_what_is_forced_is_what_the_oracle_of_mixtures_forces(tmp_path: Path, qwen3_moe: Path) -> None:
    path = recipe(tmp_path, qwen3_moe, {**ROUTER, **COMBINE}, micro_batch=4)
    report = bisect(path, device="cpu", options=ON)
    replay = ladder(report)
    assert replay.rungs[0].set_flips > 0
    assert replay.rungs[0].kl == report.metrics.kl
    assert replay.rungs[0].k3 == report.metrics.k3
    assert all(rung.set_flips == 0 for rung in replay.rungs[1:4])
    study = prepare(path, device="cpu", options=ON)
    names = [toggle.name for toggle in study.toggles]
    for choice, rung in zip(REPLAYED, replay.rungs[1:4], strict=True):
        whole = Mixtures(study, routes=choice)([frozenset(names)])[frozenset(names)]
        assert (whole.value, whole.k3) == (rung.kl, rung.k3)
    forced = Mixtures(study, routes=IDS)([frozenset({name}) for name in names])
    assert [t.name for t in replay.toggles] == names
    assert [t.alone_forced for t in replay.toggles] == [forced[frozenset({name})].value for name in names]
    assert [t.alone for t in replay.toggles] == [t.alone.kl for t in report.toggles]


def test_nothing_else_in_the_report_changes(tmp_path: Path, qwen3_moe: Path) -> None:
    path = recipe(tmp_path, qwen3_moe, COMBINE)
    plain, with_ladder = bisect(path, device="cpu"), bisect(path, device="cpu", options=ON)
    assert plain.replay is None
    assert with_ladder.metrics == plain.metrics
    assert (with_ladder.toggles, with_ladder.nodes, with_ladder.flips) == (plain.toggles, plain.nodes, plain.flips)


def test_equal_sides_stay_equal(tmp_path: Path, qwen3_moe: Path) -> None:
    report = bisect(recipe(tmp_path, qwen3_moe, {}), device="cpu", options=ON)
    replay = ladder(report)
    assert all(rung.exact and rung.kl == rung.slot_flips == 0 for rung in replay.rungs)
    assert replay.reading == ("The candidate's logits have the reference's bits with its own routes.",)


def test_a_model_without_a_router(tmp_path: Path, qwen3: Path) -> None:
    path = recipe(tmp_path, qwen3, {"layers[0].attention.rope:products": "fp32"}, vocab=300)
    replay = ladder(bisect(path, device="cpu", options=ON))
    assert replay == Replay(
        rungs=(), toggles=(), reading=("The model has no router, so there are no routes to force.",)
    )


def test_a_router_inside_a_users_function(tmp_path: Path, qwen3_moe: Path) -> None:
    path = recipe_with(tmp_path, qwen3_moe, GATE_AND_ROUTER, "gate_and_router", nodes=NODES)
    replay = ladder(bisect(path, device="cpu", options=Options(allow_code=True, replay=True, floor=False)))
    assert not replay.rungs
    assert replay.reading[0].startswith("Routes cannot be forced: a user's function stands in place of a router")
