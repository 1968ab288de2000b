"""A second opinion on exit code 0: both sides run alone, logits compared in numpy, degeneracy read from the files.

It shares with what it checks the forward pass and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from tests.hostile.contract import run

GATE = 1e-4


def false_pass(folder: Path) -> str | None:
    """Why a recipe that passed is no parity; None where nothing speaks against it, or it cannot be told this way."""
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text("utf-8"))
    tokens = recipe["tokens"]["file"]
    logits = []
    for side in ("reference", "candidate"):
        variant = recipe[side]
        name = f"{side}.safetensors"
        options = [f"--{key.replace('_', '-')}={variant[key]}" for key in ("profile", "micro_batch") if key in variant]
        tokenizer = ["--tokenizer", recipe["tokens"]["tokenizer"]] if "tokenizer" in recipe["tokens"] else []
        command = ("forward", ".", "--tokens", tokens, "--out", name, "--device", "cpu", *options, *tokenizer)
        if run(command, folder).code != 0:
            return f"{side} does not run alone"
        logits.append(_logits(folder / name))
    if not all(np.isfinite(one).all() for one in logits):
        return "logits that are not finite"
    spread = min(float(np.ptp(one, axis=-1).max()) for one in logits)
    if spread == 0.0:
        return "logits that are all alike"
    reference, candidate = (_log_probabilities(one) for one in logits)
    kl = float((np.exp(candidate) * (candidate - reference)).sum(-1).mean())
    if kl > 100 * GATE:
        return f"KL {kl:.3g} over the vocabulary"
    return _degenerate(folder)


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
