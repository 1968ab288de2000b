"""The first screens of docs/first-screen.md: eight situations, each made of the quickstart checkpoint and run."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from moeparity.engine.forward import forward
from moeparity.metrics.tokens import log_probs

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "checkpoints" / "quickstart"
TOKENS = ROOT / "recipes" / "rounding.safetensors"
SEQUENCES, POSITIONS = 32, 16
"""Of the quickstart's tokens: as many sequences as a verdict needs, as few positions as show the same."""

Sides = dict[str, Any]
EAGER: Sides = {"profile": "hf-eager", "micro_batch": 8}
DEFAULT: Sides = {"profile": "hf-default", "micro_batch": 8}
FP32: Sides = {"profile": "hf-eager", "dtype": "fp32", "micro_batch": 8}


@dataclass(frozen=True, slots=True)
class Situation:
    """What is typed in a folder that `make` has filled; `lines` is where the page breaks off, None nowhere."""

    command: str
    make: Callable[[Path], None]
    lines: int | None = None


def tokens(folder: Path, sequences: int = SEQUENCES, **columns: torch.Tensor) -> None:
    """`tokens.safetensors`: the first of the quickstart's."""
    ids = load_file(TOKENS)["input_ids"][:sequences, :POSITIONS].contiguous()
    save_file({"input_ids": ids, **columns}, folder / "tokens.safetensors")


def recipe(folder: Path, reference: Sides, candidate: Sides, below: float, checkpoint: str = "checkpoint") -> None:
    """`recipe.yaml`, and the checkpoint beside it."""
    if checkpoint == "checkpoint":
        (folder / checkpoint).symlink_to(CHECKPOINT)
    keys = {
        "kind": "recipe",
        "checkpoint": checkpoint,
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": reference,
        "candidate": candidate,
        "gate": {"metric": "k3", "below": below},
    }
    # JSON is YAML.
    (folder / "recipe.yaml").write_text(json.dumps(keys, indent=1), "utf-8")


def parity(folder: Path) -> None:
    """One small choice differs, and the gate is wide."""
    tokens(folder)
    recipe(folder, EAGER, {**EAGER, "set": {"layers[*].moe.gate:output": "fp32"}}, 1e-2)


def culprit(folder: Path) -> None:
    """In fp32 a rounding of the logits to bf16, beside one of the norm's eps that is another model."""
    tokens(folder)
    settings = {"lm_head:output": "bf16", "layers[*].attention.norm:eps": 1e-2}
    recipe(folder, FP32, {**FP32, "set": settings}, 1e-5)


def saturated(folder: Path) -> None:
    """The quickstart: eager modules against sdpa attention and grouped experts, in bf16."""
    tokens(folder)
    further = {"layers[*].moe.gate:output": "fp32", "layers[*].moe.experts:activation": "fp32"}
    recipe(folder, EAGER, {**DEFAULT, "set": further}, 5e-5)


def record(folder: Path) -> None:
    """The server sampled at temperature 0.8 and recorded what it sampled from; the recipe knows of no temperature."""
    tokens(folder, logprobs=logprobs(temperature=0.8))
    recipe(folder, EAGER, DEFAULT, 1e-2)


def log(folder: Path) -> None:
    """The trainer's log-probabilities stand one token too late."""
    sampled = logprobs("hf-default")[:, 1:]
    scored = logprobs("hf-eager")[:, 1:].roll(1, -1)
    ids = load_file(TOKENS)["input_ids"][:SEQUENCES, 1:POSITIONS]
    rows = (
        {
            "id": f"s{row}",
            "input_ids": of_row.tolist(),
            "mask": [1] * len(of_row),
            "logprobs": of_sampler.tolist(),
            "trainer_logprobs": of_trainer.tolist(),
        }
        for row, (of_row, of_sampler, of_trainer) in enumerate(zip(ids, sampled, scored, strict=True))
    )
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def nan(folder: Path) -> None:
    """A row of one expert is large, and the candidate's combine gives its sums in fp16."""
    tokens(folder)
    shutil.copytree(CHECKPOINT, folder / "large")
    (file,) = (folder / "large").glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in tensors if ".layers.1." in name and "down_proj" in name)
    tensors[name].view(-1, tensors[name].shape[-1])[3] *= 1e8
    save_file(tensors, file, {"format": "pt"})
    recipe(folder, EAGER, {**EAGER, "set": {"layers[1].moe.combine:output": "fp16"}}, 1e-4, checkpoint="large")


def inconclusive(folder: Path) -> None:
    """Eight sequences, and a gate among what they give, by a rounding that every processor's logits show alike."""
    tokens(folder, sequences=8)
    rounded = {"log_probs:form": "log_softmax", "log_probs:output": "bf16"}
    recipe(folder, EAGER, {**EAGER, "set": rounded}, 5e-6)


def refused(folder: Path) -> None:
    """A profile's name as the engine spells it."""
    tokens(folder)
    recipe(folder, EAGER, {"profile": "VLLM", "micro_batch": 8}, 1e-4)


def logprobs(profile: str = "hf-default", temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the tokens, fp32 [B, T]; of the first of each sequence, which nothing scores, 0."""
    ids = load_file(TOKENS)["input_ids"][:SEQUENCES, :POSITIONS].contiguous()
    logits = forward(CHECKPOINT, ids, profile=profile, micro_batch=8, device="cpu")["logits"]
    scores = log_probs(logits.double() / temperature, False)[:, :-1]
    of_tokens = scores.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return torch.nn.functional.pad(of_tokens, (1, 0)).float()


BISECT = "moeparity bisect recipe.yaml"
SUMMARY = 16
SITUATIONS = {
    "parity": Situation(BISECT, parity, SUMMARY),
    "culprit": Situation(BISECT, culprit, SUMMARY),
    "saturated": Situation(BISECT, saturated),
    "record": Situation(BISECT, record, SUMMARY),
    "log": Situation("moeparity metrics log.jsonl --gate 'k3<1e-3'", log),
    "nan": Situation(BISECT, nan, SUMMARY),
    "inconclusive": Situation(BISECT, inconclusive, SUMMARY),
    "refused": Situation(BISECT, refused),
}


def arguments(name: str) -> list[str]:
    """What is typed, without the program's name."""
    return shlex.split(SITUATIONS[name].command)[1:]
