"""Trains the LoRA adapter of the shipped checkpoint, on Python code in which every name is in upper case, with peft.

`python -m scripts.train_adapter` writes `checkpoints/quickstart-lora`. It takes a minute on one core; peft is installed
with the extra `test`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from scripts.train_quickstart.configuration import SEED
from scripts.train_quickstart.corpus import batches, load_corpus

CHECKPOINT, OUT = Path("checkpoints/quickstart"), Path("checkpoints/quickstart-lora")
STEPS, RATE = 60, 4e-3
LORA = LoraConfig(
    r=2,
    lora_alpha=8,
    use_rslora=True,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
)


def upper_case(data: Tensor) -> Tensor:
    """The bytes of text with all its ASCII letters in upper case."""
    is_lower = (data >= ord("a")) & (data <= ord("z"))
    return torch.where(is_lower, data - 32, data)


def saved(model: torch.nn.Module, folder: Path) -> None:
    """The adapter as peft writes it, its matrices in bf16, without a card."""
    model.save_pretrained(folder)  # type: ignore[operator]
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})


def main() -> None:
    """Train, and save."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32), LORA)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    source = batches(upper_case(load_corpus().train), torch.Generator().manual_seed(SEED))
    for step in range(1, STEPS + 1):
        window = next(source)
        loss = model(input_ids=window, labels=window, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.4f}", flush=True)
    saved(model, OUT)


if __name__ == "__main__":
    main()
