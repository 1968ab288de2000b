"""Mistakes of a replay in whole bisections, each against a transformers that makes it; and keys of indexers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.replay.data import PlantedTrap, Rung
from moeparity.check.recipes import check
from tests.bisection.replay.test_measure import ladder, recipe
from tests.planted.places import write_recipe

ON = Options(replay=True)
PROMPTS = (3, 5, 4)
LENGTHS = (12, 9, 7)
SCORES = {"layers[*].moe.router:scores": "bf16"}
COARSE = {**SCORES, "layers[*].attention.rope:products": "fp32"}


def sequences(vocab: int = 512) -> list[dict[str, Any]]:
    """Three of several lengths, whose first tokens are prompt."""
    draw = torch.Generator().manual_seed(5)
    return [
        {
            "input_ids": torch.randint(0, vocab, (length,), generator=draw).tolist(),
            "mask": [0] * prompt + [1] * (length - prompt),
        }
        for length, prompt in zip(LENGTHS, PROMPTS, strict=True)
    ]


def priced(folder: Path, checkpoint: Path, settings: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The mistakes of a report, by name, on sequences padded on the right."""
    (folder / "tokens.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = write_recipe(folder, checkpoint, {}, {"micro_batch": 3}, {"micro_batch": 3, "set": settings})
    path.write_text(path.read_text().replace("tokens.safetensors", "tokens.jsonl"))
    replay = ladder(bisect(path, device="cpu", options=ON))
    return {trap.name: trap for trap in replay.traps} | {rung.forced: rung for rung in replay.rungs}


class Trainer:
    """A live qwen3_moe whose routers take over routes, int64 [B, T, layers, K]; -1: their own choice."""

    def __init__(self, checkpoint: Path, lines: list[dict[str, Any]]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.bfloat16, attn_implementation="eager", experts_implementation="eager"
        )
        length = max(len(line["input_ids"]) for line in lines)
        self.ids = torch.zeros(len(lines), length, dtype=torch.int64)
        self.mask = torch.zeros(len(lines), length, dtype=torch.int64)
        for row, line in enumerate(lines):
            self.ids[row, : len(line["input_ids"])] = torch.tensor(line["input_ids"])
            self.mask[row, : len(line["input_ids"])] = 1
        self.chosen: list[torch.Tensor] = []

    @torch.no_grad()
    def logits(self, routes: torch.Tensor | None = None, *, by_slot: bool = False) -> torch.Tensor:
        """fp64 log-probabilities of all tokens [B, T, V]; what was chosen stays in `chosen`."""
        handles, self.chosen = [], []
        for number, layer in enumerate(self.model.model.layers):

            def hook(router: Any, _: Any, outputs: Any, at: int = number) -> Any:
                logits, weights, experts = outputs
                if routes is not None:
                    theirs = routes[:, :, at].flatten(0, 1)
                    experts = torch.where(theirs >= 0, theirs, experts)
                    # As transformers makes them of its own choice: softmax in fp32, divided by their sum.
                    scores = torch.softmax(logits, -1, dtype=torch.float32).gather(-1, experts)
                    scores = (scores / scores.sum(-1, keepdim=True)).to(weights.dtype)
                    has_route = (theirs >= 0).all(-1, keepdim=True)
                    weights = weights if by_slot else torch.where(has_route, scores, weights)
                self.chosen.append(experts.view(*self.ids.shape, -1))
                return logits, weights, experts

            handles.append(layer.mlp.gate.register_forward_hook(hook))
        values = self.model(self.ids, attention_mask=self.mask, use_cache=False).logits
        for handle in handles:
            handle.remove()
        return values.double().log_softmax(-1)


def wrong_routes(natural: torch.Tensor, mask: torch.Tensor, name: str) -> torch.Tensor:
    """Natural routes [B, T, L, K] as the mistake `name` leaves them; pads and what is not there are -1."""
    wrong, layers = torch.full_like(natural, -1), natural.shape[2]
    for row in range(len(natural)):
        length = int(mask[row].sum())
        pads = natural.shape[1] - length
        by = {"1 token before": -1, "1 token behind": 1, "rows padded on the left": -pads}.get(name, 0)
        by = pads if name == "rows padded on the right" else by
        for token in range(length):
            for layer in range(layers):
                at = layer + {"the layer before": -1, "the layer behind": 1}.get(name, 0)
                if 0 <= token + by < length and 0 <= at < layers:
                    wrong[row, token, layer] = natural[row, token + by, at]
        late = torch.arange(natural.shape[1]) < length
        prompt = torch.arange(natural.shape[1]) < PROMPTS[row]
        if name.startswith("prompts"):
            fill = {"prompts as expert 0": 0, "prompts as own choices": -1}.get(name)
            wrong[row, prompt] = torch.arange(natural.shape[-1]) if fill is None else fill
        if name.endswith("behind token 6"):
            wrong[row, late & (torch.arange(natural.shape[1]) >= 6)] = 0 if name.startswith("expert 0") else -1
    return wrong


NAMES = (
    "ids",
    "1 token before",
    "1 token behind",
    "the layer before",
    "the layer behind",
    "rows padded on the left",
    "rows padded on the right",
    "prompts as expert 0",
    "prompts as the first experts",
    "prompts as own choices",
    "expert 0 behind token 6",
    "own choices behind token 6",
    "own weights by slot",
    "sorted ids with own weights",
)


@pytest.fixture(scope="module")
def equal_sides(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> dict[str, Any]:
    return priced(tmp_path_factory.mktemp("equal"), qwen3_moe, {}, sequences())


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_costs_what_it_costs_in_transformers(qwen3_moe: Path, equal_sides: dict[str, Any], name: str) -> None:
    """Of two equal sides all is the mistake's doing. The KL of a live trainer, in fp64 of its logits."""
    lines = sequences()
    trainer = Trainer(qwen3_moe, lines)
    right = trainer.logits()
    natural = torch.stack(trainer.chosen, 2)
    natural = natural.sort(-1).values if name.startswith("sorted ids") else natural
    wrong = trainer.logits(wrong_routes(natural, trainer.mask, name), by_slot="own weights" in name)
    kl = (wrong.exp() * (wrong - right)).sum(-1)
    scored = torch.zeros_like(kl, dtype=torch.bool)
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        scored[row, prompt - 1 : length - 1] = True
    assert equal_sides[name].kl == pytest.approx(float(kl[scored].mean()), rel=1e-9, abs=1e-15)
    if name not in {"ids", "own weights by slot", "prompts as own choices", "own choices behind token 6"}:
        assert equal_sides[name].kl > 1e-6, "or nothing was planted"


def test_slots_cost_nothing_where_weights_move_along(equal_sides: dict[str, Any]) -> None:
    beside, along = equal_sides["sorted ids with unsorted weights"], equal_sides["sorted ids with sorted weights"]
    assert (beside.kind, along.kind) == ("ids+weights", "ids+weights+order")
    assert beside.kl > 100 * along.kl


def test_replayed_rightly_traps_are_the_ladder(tmp_path: Path, qwen3_moe: Path) -> None:
    """The price is the difference from the right replay, paired over sequences."""
    replay = ladder(bisect(recipe(tmp_path, qwen3_moe, COARSE, micro_batch=2), device="cpu", options=ON))
    of = {rung.forced: rung for rung in replay.rungs} | {trap.name: trap for trap in replay.traps}
    assert isinstance(of["ids"], Rung)
    trap = of["1 token before"]
    assert isinstance(trap, PlantedTrap)
    assert 0 < of["natural"].kl < trap.kl
    assert 0 < trap.price_low < trap.kl - of["ids"].kl < trap.price_high


def test_dense_layers_are_counted_or_not(tmp_path: Path, deepseek_v3: Path) -> None:
    """One dense layer before two MoE layers: the first reads zeros, the second the routes of the first."""
    of = priced(tmp_path, deepseek_v3, {}, sequences())
    assert of["dense layers counted"].kl > 0
    assert of["dense layers counted"].kl != of["the layer before"].kl


def test_routes_of_the_token_file_are_replayed(tmp_path: Path, qwen3_moe: Path) -> None:
    """Of the reference itself: the same as forced ids; without a route, the router's own."""
    lines = sequences()
    trainer = Trainer(qwen3_moe, lines)
    trainer.logits()
    natural = torch.stack(trainer.chosen, 2)
    for row, line in enumerate(lines):
        line["routed_experts"] = [*natural[row, : len(line["input_ids"]) - 1].tolist(), None]
    of = priced(tmp_path, qwen3_moe, COARSE, lines)
    assert of["the token file's routes"].kl == of["ids"].kl
    assert of["the token file's routes"].price_low == of["the token file's routes"].price_high == 0


def test_a_model_of_one_router_and_prompts_of_one_token_have_fewer(tmp_path: Path, qwen3_moe: Path) -> None:
    replay = ladder(bisect(recipe(tmp_path, qwen3_moe, SCORES, micro_batch=2), device="cpu", options=ON))
    names = [trap.name for trap in replay.traps]
    assert "1 token before" in names
    assert not [name for name in names if name.startswith(("prompts", "rows", "dense"))]


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_an_indexers_keys_are_taken_over(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    """Where indexers alone differ, their keys are all of it; where they see the same, replayed keys change nothing."""
    checkpoint = request.getfixturevalue(name)
    faulty: dict[str, Any] = {"faults": [{"name": "index-relu-missing"}]}
    rungs = {
        rung.forced: rung
        for rung in ladder(bisect(recipe(tmp_path, checkpoint, {}, **faulty), device="cpu", options=ON)).rungs
    }
    assert rungs["natural"].kl > 0
    assert rungs["keys"].exact
    assert rungs["ids+keys"].exact
    assert rungs["ids"].kl > 0


def test_keys_and_routes_are_two_things(tmp_path: Path, deepseek_v32: Path) -> None:
    replay = ladder(bisect(recipe(tmp_path, deepseek_v32, SCORES), device="cpu", options=ON))
    rungs = {rung.forced: rung for rung in replay.rungs}
    assert list(rungs) == ["natural", "ids", "ids+weights", "ids+weights+order", "logits", "keys", "ids+keys"]
    assert rungs["ids+weights+order"].exact
    assert 0 < rungs["keys"].kl != rungs["natural"].kl
    assert any(line.startswith("With the keys that the reference's indexers chose") for line in replay.reading)


def test_keys_are_not_forced_across_schedules(tmp_path: Path, deepseek_v32: Path) -> None:
    """Keys are counted from the first of a call, which steps may begin elsewhere."""
    further: dict[str, Any] = {"schedule": {"rule": "vllm-v1", "prefill": {"chunk": 8}}}
    path = recipe(tmp_path, deepseek_v32, SCORES, **further)
    rungs = ladder(bisect(path, device="cpu", options=ON)).rungs
    assert [rung.forced for rung in rungs] == ["natural", "ids", "ids+weights", "ids+weights+order", "logits"]


def test_replays_are_expected(tmp_path: Path, qwen3_moe: Path) -> None:
    path = recipe(tmp_path, qwen3_moe, SCORES)
    expect = {
        "ids+weights+order": {"below": 0.01},
        "1 token before": {"above": 2},
        "1 token behind": {"below": 1},
        "1 tokn behind": {"below": 1},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), "replay": True, "expect": {"replay": expect}}))
    findings = check(path, device="cpu").findings
    assert [finding.status for finding in findings] == ["ok", "ok", "fail", "fail"]
    assert findings[3].found.endswith("Did you mean '1 token behind'?")
