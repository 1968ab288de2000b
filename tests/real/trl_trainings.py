"""Trainings of a real TRL on a CPU: what is asked, what it computed, and the same log-probabilities by this project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.hooks.batch import BATCHES, FOLDER
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.grid import grid_of
from moeparity.plan.schedule.make import schedule
from moeparity.plan.schedule.settings import settings
from moeparity.plan.spec.reader import read_scheduling
from tests.engines.live import ROOT, run_beside

CHECKPOINT = ROOT / "checkpoints/quickstart"
PROMPTS = (
    "import os\n\ndef main(",
    "x",
    "class A:\n    def __init__(self, value):\n        self.",
    "for i in range(10):",
    "def f(a, b):\n    return ",
    "    if not ",
    "        raise ValueError(",
    "try:\n    import ",
)
"""Some of one token and some that a line ends at once: pads on both sides of most sequences."""
CONFIG: dict[str, Any] = {
    "bf16": False,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "num_generations": 2,
    "num_iterations": 2,
    "max_completion_length": 16,
    "max_steps": 3,
    "learning_rate": 1e-3,
}
"""Two generations of four micro-batches, each trained on twice, so that the trainer scores them beforehand."""


@dataclass(frozen=True)
class Training:
    """What one training computed (tests/real/trl_run.py has its form), and the hook's files, step by step."""

    answer: dict[str, Any]
    files: list[Path]

    def ids(self, generation: int) -> Tensor:
        """[B, P + C]"""
        return self._joined(generation, "ids")

    def mask(self, generation: int) -> Tensor:
        """bool [B, P + C], False at pads."""
        return self._joined(generation, "mask").bool()

    def _joined(self, generation: int, kind: str) -> Tensor:
        batch = self.answer["batches"][generation]
        return torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], 1)


def train(
    scratch: Path, *, hook: bool = True, records: bool = True, fault: str | None = None, **config: Any
) -> Training:
    """A training with these arguments of GRPOConfig on top of `CONFIG`."""
    case = {
        "folder": str(CHECKPOINT),
        "prompts": list(PROMPTS),
        "config": CONFIG | config,
        "hook": hook,
        "records": records,
        "fault": fault,
    }
    torch.save(case, scratch / "case.pt")
    variables = {"HF_HUB_OFFLINE": "1", BATCHES: "9"} | ({FOLDER: str(scratch / "batch")} if hook else {})
    program, files = ROOT / "tests/real/trl_run.py", [str(scratch / "case.pt"), str(scratch / "answer.pt")]
    run_beside(("trl", "trl-needs"), program, files, variables)
    return Training(torch.load(scratch / "answer.pt"), sorted((scratch / "batch").glob("trl-*.jsonl")))


def scored(model: Model, training: Training, *, profile: str, dtype: str, set: Mapping[str, Any]) -> Tensor:
    """[B, C]: the first generation's log-probabilities as the trainer computes them, four sequences at a time."""
    options = {
        "profile": profile,
        "dtype": dtype,
        "settings": set,
        "micro_batch": CONFIG["per_device_train_batch_size"],
    }
    return _of_completions(model, training, training.mask(0), options)


def sampled(model: Model, training: Training, *, profile: str, dtype: str, generation: int, read: Tensor) -> Tensor:
    """[B, C]: a generation's log-probabilities as transformers' `generate` computes them: all sequences together,
    prompts, then token after token. read: bool [B, P + C], what it attends to.
    """
    where = Where(Path("test"))
    prompts = training.answer["batches"][generation]["prompt_mask"]
    counts = read[:, : prompts.shape[1]].sum(1)
    scheduling = settings(read_scheduling({"decode": {"from": "prompt"}}, where), None, len(read), where)
    steps = schedule(scheduling, grid_of(read, counts), where)
    form = {"log_probs:form": "log_softmax"}
    options = {"profile": profile, "dtype": dtype, "settings": form, "schedule": steps}
    return _of_completions(model, training, read, options, generation)


def _of_completions(
    model: Model, training: Training, mask: Tensor, options: Mapping[str, Any], generation: int = 0
) -> Tensor:
    ids = training.ids(generation)
    values = forward(model, ids, attention_mask=mask, save=["log_probs"], **options)["log_probs"]
    of_tokens = values[:, :-1].gather(2, ids[:, 1:, None])[:, :, 0]
    return of_tokens[:, -training.answer["batches"][generation]["completion_ids"].shape[1] :]


def save(weights: Mapping[str, Tensor], folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """The trained weights as a checkpoint of that dtype."""
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype)
    model.load_state_dict(dict(weights))
    model.save_pretrained(folder)
    return folder


def recipe(folder: Path, tokens: Path, *, reference: str, candidate: str, checkpoint: Path = CHECKPOINT) -> Path:
    """A recipe of both sides, whose tokens the candidate sampled."""
    path = folder / "recipe.yaml"
    path.write_text(
        f"kind: recipe\ncheckpoint: {checkpoint}\ntokens: {{file: {tokens}, sampled_from: candidate}}\n"
        f"reference: {reference}\ncandidate: {candidate}\ngate: {{metric: k3, below: 1.0e-6}}\nfloor: false\n",
        "utf-8",
    )
    return path
