"""LoRA adapters that peft itself makes and saves beside small checkpoints, of random numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warning that peft 0.21.2 reads a name which transformers 5.23.0 has deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def make_adapter(checkpoint: Path, folder: Path, *, seed: int = 0, **fields: Any) -> Path:
    """An adapter of the checkpoint, with matrices of which none is zero; `fields` are those of its LoraConfig."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    torch.manual_seed(seed)
    with quiet():
        adapted = get_peft_model(model, LoraConfig(init_lora_weights=False, **fields))
    with torch.no_grad():
        for name, matrix in adapted.named_parameters():
            if "lora_" in name:
                matrix.normal_(0, 0.1)
    adapted.save_pretrained(str(folder))
    return folder
