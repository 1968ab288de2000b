"""The written checkpoint: saved with the hub's names, loaded as a user would, scored on what was held out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3MoeForCausalLM

from scripts.train_quickstart.configuration import BATCH, HUB_CONFIG, SEQ_LEN
from scripts.train_quickstart.corpus import windows
from scripts.train_quickstart.model import expert_counts, forward

MAX_FILE_BYTES = 4_000_000


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss and, for each layer, every expert's share of the routed tokens."""

    nats_per_byte: float
    expert_shares: list[Tensor]


def save(model: Qwen3MoeForCausalLM, out: Path) -> None:
    """Write the bf16 weights in the hub layout and a config.json with the hub's field names."""
    model.to(torch.bfloat16).save_pretrained(out)
    # safetensors creates the file readable by its owner only.
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(HUB_CONFIG, indent=2) + "\n")


def load_saved(out: Path) -> Qwen3MoeForCausalLM:
    """Load the written checkpoint as a user would, failing on any key mismatch or an oversized file."""
    model, info = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16, output_loading_info=True)
    problems = {name: keys for name, keys in info.items() if keys}
    if problems:
        raise RuntimeError(f"{out} does not load cleanly: {problems}")
    size = (out / "model.safetensors").stat().st_size
    if size > MAX_FILE_BYTES:
        raise RuntimeError(f"model.safetensors has {size} bytes, more than {MAX_FILE_BYTES}")
    return model


@torch.no_grad()
def evaluate(model: Qwen3MoeForCausalLM, data: Tensor) -> Evaluation:
    """Score disjoint held-out windows, each from an empty context."""
    model.eval()
    starts = torch.arange((len(data) - 1) // SEQ_LEN) * SEQ_LEN
    counts = torch.zeros(HUB_CONFIG["num_hidden_layers"], HUB_CONFIG["num_experts"])
    total = 0.0
    for chunk in starts.split(BATCH):
        loss, router_logits = forward(model, windows(data, chunk))
        total += loss.item() * len(chunk)
        counts += torch.stack([expert_counts(logits) for logits in router_logits])
    return Evaluation(total / len(starts), list(counts / counts.sum(dim=1, keepdim=True)))
