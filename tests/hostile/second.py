"""A second opinion on exit code 0: both sides run alone, logits compared in numpy, degeneracy read from the files.

It shares with what it checks the forward pass and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.hostile.batch import Job, run_all

SIDES = ("reference", "candidate")


def false_passes(folders: Sequence[Path]) -> list[str | None]:
    """Of each recipe that passed why it is no parity; None where nothing speaks against it.

    All references run in one process, all candidates in another. Of a recipe that says what `forward` has no option for
    only the weights are looked at.
    """
    ran: dict[Path, dict[str, int | None]] = {folder: {} for folder in folders}
    for side in SIDES:
        jobs = [Job(folder, words) for folder in folders if (words := _forward(folder, side))]
        for job, ended in zip(jobs, run_all(jobs), strict=True):
            ran[job.folder][side] = ended.code
    return [_false_pass(folder, ran[folder]) for folder in folders]


def _forward(folder: Path, side: str) -> tuple[str, ...] | None:
    """The command that runs one side alone; None where it has no option for something that the recipe says."""
    recipe = _recipe(folder)
    variant, tokens = recipe[side], recipe["tokens"]
    options = {key: value for key, value in variant.items() if value is not None}
    schedule = options.pop("schedule", {})
    settings = options.pop("set", None) or {}
    is_plain = options.keys() <= {"profile", "micro_batch", "dtype"} and schedule.keys() <= {"file"}
    if not is_plain or tokens.keys() - {"file", "tokenizer", "sampled_from"} or recipe["checkpoint"] != ".":
        return None
    if settings:
        rules = [
            {"nodes": name.rpartition(":")[0], "set": {name.rpartition(":")[2]: value}}
            for name, value in settings.items()
        ]
        profile = {"kind": "profile", "name": side, "extends": options.get("profile", "hf-eager"), "rules": rules}
        options["profile"] = f"./{side}.profile.yaml"
        (folder / options["profile"]).write_text(json.dumps(profile), "utf-8")
    options |= {"schedule": schedule["file"]} if schedule else {}
    options |= {"tokenizer": tokens["tokenizer"]} if "tokenizer" in tokens else {}
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    return ("forward", ".", "--tokens", tokens["file"], f"--out={side}.safetensors", "--device=cpu", *words)


def _false_pass(folder: Path, ran: Mapping[str, int | None]) -> str | None:
    for side, code in ran.items():
        if code != 0:
            return f"{side} does not run alone"
    if len(ran) == len(SIDES):
        gate = _recipe(folder)["gate"]
        logits = [_logits(folder / f"{side}.safetensors") for side in SIDES]
        if not all(np.isfinite(each_logits).all() for each_logits in logits):
            return "logits that are not finite"
        if min(float(np.ptp(each_logits, axis=-1).max()) for each_logits in logits) == 0.0:
            return "logits that are all alike"
        reference, candidate = (_log_probabilities(each_logits) for each_logits in logits)
        kl = float((np.exp(candidate) * (candidate - reference)).sum(-1).mean())
        if gate["metric"] == "k3" and kl > 100 * float(gate["below"]):
            return f"KL {kl:.3g} over the vocabulary"
    return _degenerate(folder)


def _recipe(folder: Path) -> dict[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load((folder / "recipe.yaml").read_text("utf-8"))
    return recipe


def _logits(path: Path) -> np.ndarray:
    # numpy knows no bf16: forward writes fp32 or bf16; the latter is read through its bits.
    import torch
    from safetensors.torch import load_file as load

    return load(path)["logits"].to(torch.float64).numpy()


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _degenerate(folder: Path) -> str | None:
    """A matrix that is constant or not finite, read from the file."""
    import torch
    from safetensors.torch import load_file as load

    for name, tensor in load(folder / "model.safetensors").items():
        if tensor.dim() == 2 and tensor.numel() > 1:
            values = tensor.to(torch.float64).numpy()
            if not np.isfinite(values).all():
                return f"{name} is not finite"
            if np.ptp(values) == 0:
                return f"{name} is constant"
    status = json.loads((folder / "report.json").read_text("utf-8"))["verdict"]["status"]
    return None if status == "pass" else f"exit code 0 with the verdict {status}"
