"""A real vLLM 0.32.0 on this CPU, recorded while it serves: the map finds values, with the bits of the profile."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.errors import Where
from moeparity.evidence.explain.report import Explained
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.evidence.maps.side import RecordedSide, recorded_side
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.address import file_key, role
from tests.command import alone
from tests.opened import opened
from tests.real.served import (
    CACHED,
    CHECKPOINTS,
    PROFILE,
    Run,
    capturing,
    checkpoint,
    drawn_prompts,
    grid,
    replayed,
    serve,
    traced_recipe,
)
from tests.real.test_vllm_cpu import ROPE_IS_WRONG, refuse_other_cpus

pytestmark = pytest.mark.live
ENGINE = CACHED | {"max_num_batched_tokens": 48}
"""Chunks and a prefix cache."""
NODES = ("attention.rope.q", "attention.rope.k", "moe.router.ids", "moe.router.weights")


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A checkpoint, what it was asked and answered, the trace, and what the map makes of it."""

    name: str
    model: Model
    run: Run
    answer: dict[str, Any]
    trace: Path
    side: RecordedSide


@pytest.fixture(scope="module", params=CHECKPOINTS)
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Requests that join at different steps; two begin as the first one does. Latent attention has
    its rope mended (tests/real/vllm_cpu.py).
    """
    refuse_other_cpus()
    folder = tmp_path_factory.mktemp(request.param)
    model = opened(checkpoint(request.param, folder / "checkpoint"))
    prompts = drawn_prompts((150, 150, 140), model.vocab_size, seed=3, shared=130)
    prompts += drawn_prompts((20, 3, 31), model.vocab_size, seed=4)
    run = Run(prompts=prompts, new=6, arrivals=[0, 5, 8, 1, 2, 6], prompt_logprobs=False)
    under = capturing(folder / "trace", "op,module", "model*", "logits_processor")
    mended = request.param == ROPE_IS_WRONG
    (answer,) = serve(model.folder, [run], ENGINE, folder, mended=mended, under=under)
    ids, mask = grid(run, answer)
    weights = model.weights.checkpoint.tensor
    side = recorded_side(folder / "trace", model.graph, ids, mask.bool(), tensor=weights, where=Where(folder))
    return Traced(name=request.param, model=model, run=run, answer=answer, trace=folder / "trace", side=side)


def test_rows_are_those_of_the_requests(traced: Traced) -> None:
    """As a hook on the worker saw its steps, which knows nothing of the capture."""
    schedule = traced.side.schedule
    assert schedule is not None
    assert [[(s.sequence, s.first, s.tokens) for s in step.spans] for step in schedule.steps] == traced.answer["steps"]
    copies = {copy.sequence: copy.last for step in schedule.steps for copy in step.copies}
    # For latent attention vLLM uses neither chunks nor a prefix cache on a CPU.
    assert copies.keys() == (set() if traced.name == ROPE_IS_WRONG else {1, 2})
    assert all(copy.source == 0 for step in schedule.steps for copy in step.copies)
    assert any(step.phase == "chunk" for step in schedule.steps)
    (rows,) = traced.run.as_case()["prompts"][:1]
    assert traced.side.tokens == sum(map(len, traced.run.prompts)) + 5 * len(traced.run.prompts) - sum(copies.values())
    assert len(rows) > 128


def test_every_value_that_is_mapped_has_the_bits_of_the_profile(traced: Traced, tmp_path: Path) -> None:
    """Rotated queries and keys, routes and logits of every layer among them."""
    graph, grafts = traced.model.graph, traced.side.grafts
    wanted = [value for node in graph.nodes for value in node.values if value.endswith(NODES) or value == graph.output]
    assert {role(value).removeprefix("layers[*].") for value in wanted} == {*NODES, "lm_head"}
    assert [value for value in wanted if value not in grafts] == []
    computed = replayed(traced.model, traced.run, traced.answer, tmp_path / "steps", save=["**"])
    for value, graft in grafts.items():
        by_token = computed[file_key(value)].movedim(graph.makers[value].op.tokens.axis, 1)
        ours, is_recorded = by_token.flatten(0, 1).flatten(1), graft.is_recorded
        assert int(is_recorded.sum()) > 30, value
        assert same_bits(ours[is_recorded], graft.read()[is_recorded]), value


def test_logits_are_those_of_each_requests_last_token(traced: Traced) -> None:
    """As the head gave them, step by step."""
    graft, schedule = traced.side.grafts["lm_head"], traced.side.schedule
    assert schedule is not None
    rows = [s.sequence * len(graft.is_recorded) // len(traced.run.prompts) + s.last - 1
            for step in schedule.steps for s in step.spans]  # fmt: skip
    assert sorted(rows) == graft.is_recorded.nonzero().flatten().tolist()
    assert same_bits(graft.read()[rows], torch.cat(traced.answer["logits"]))


def test_explain_reads_a_batch_by_request(traced: Traced) -> None:
    """Attention of every request that no prefix cache served; logits; and the rotation, at each request's positions."""
    for nodes in ("layers[0].attention.rope", "layers[0].attention.attend", "layers[1].attention.norm", "lm_head"):
        result: Explained = explain_trace(
            ExplainRequest(trace=traced.trace, checkpoint=traced.model.folder, profile=PROFILE, nodes=(nodes,))
        )
        # Prompts and decoding steps of latent attention are computed in two forms.
        parts = 2 if (traced.name, nodes) == (ROPE_IS_WRONG, "layers[0].attention.attend") else 1
        assert [node.as_started for node in result.nodes] == [True] * parts, nodes
        cached = [unseen for unseen in result.unseen if "prefix cache" in unseen.reason]
        assert bool(cached) == (nodes.endswith("attend") and traced.name != ROPE_IS_WRONG), nodes


def test_explain_finds_the_profile_at_every_node_of_a_layer(traced: Traced) -> None:
    """That the trace shows, norms that read a sum before it is stored among them."""
    result: Explained = explain_trace(
        ExplainRequest(trace=traced.trace, checkpoint=traced.model.folder, profile=PROFILE, nodes=("layers[1].**",))
    )
    assert [node.node for node in result.nodes if not node.as_started] == []
    unmapped = {node.name for node in traced.model.graph.nodes if not any(v in traced.side.grafts for v in node.values)}
    hidden = {unseen.node for unseen in result.unseen if not unseen.forwards}
    assert hidden == {name for name in unmapped if name.startswith("layers[1].")}


def test_a_recipe_finds_no_divergence(traced: Traced, tmp_path: Path) -> None:
    """At no node that the trace shows, and in no bit of a scored token's log-probability."""
    recipe = traced_recipe(tmp_path, traced.model.folder, traced.run, traced.answer, traced.trace)
    done = alone("bisect", recipe, "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["roots"] == []
    assert report["verdict"]["reason"] == "all bits are equal"
    assert report["trace"]["shown"] > len(traced.model.graph.nodes) / 2
