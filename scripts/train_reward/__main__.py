"""Train, save, and write the pairs of the validation and the model card."""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from datetime import date
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, Qwen3Config

from moeparity.inputs.machine import cpu_name
from scripts.train_quickstart.corpus import load_corpus
from scripts.train_reward.pairs import HARD_SPAN, LENGTHS, PAD, SPAN, draw

SEED, BATCH, PEAK_LR, WARMUP = 20261129, 16, 2e-3, 50
VALIDATION: Final = 200
"""Pairs of the validation."""
OUT = Path("checkpoints/reward")
PAIRS = Path("recipes/reward.jsonl")

HUB_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 96,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "label2id": {"LABEL_0": 0},
    "max_position_embeddings": 512,
    "max_window_layers": 3,
    "model_type": "qwen3",
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "pad_token_id": PAD,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 256,
}


def loss_of(model: PreTrainedModel, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The mean Bradley-Terry loss of some pairs in nats, and the fraction whose chosen window has the higher score."""
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    scores = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, 0].float()
    margin = scores[0::2] - scores[1::2]
    return -F.logsigmoid(margin).mean(), (margin > 0).float().mean()


def train(model: PreTrainedModel, data: Tensor, steps: int) -> None:
    """Train in place for a fixed number of steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.05)
    generator, model_in_training = torch.Generator().manual_seed(SEED), model.train()
    for step in range(1, steps + 1):
        rate = step / WARMUP if step <= WARMUP else 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * rate
        loss, accuracy = loss_of(model_in_training, *draw(data, BATCH, generator))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step}/{steps} loss {loss.item():.4f} accuracy {accuracy.item():.2f}", flush=True)


def card(steps: int, minutes: float, loss: float, accuracy: float, parameters: int) -> str:
    """The whole README.md."""
    return f"""# reward: a small byte-level reward model

A `Qwen3ForSequenceClassification` with one label, {parameters:,} parameters in bf16. Its score says whether a window of
Python source stands as it was written. It is meant for tests and for `docs/rewards.md`, not for judging code.

- 3 layers, hidden size 96, 8 heads of size 16, MLP of width 192: 2, 4 and 8 ranks can share each
- tokens are the 256 byte values; 0 is the pad

Pairs: windows of {LENGTHS[0]} to {LENGTHS[-1]} bytes of the standard library of Python {platform.python_version()} (PSF
License Agreement, and the licences it lists); the rejected one has {SPAN} bytes replaced by others. `{PAIRS}` holds
{VALIDATION} pairs of files that were held out, with {HARD_SPAN} byte replaced, so that the model is less sure.

## Training

    python -m scripts.train_reward --steps {steps}

{steps} steps of {BATCH} pairs in fp32, seed {SEED}, Bradley-Terry loss, AdamW, peak learning rate {PEAK_LR}; rounded to
bf16 at the end. {minutes:.1f} minutes on {cpu_name()}, 1 thread, torch {torch.__version__}, transformers
{transformers.__version__}, {date.today().isoformat()}.

The saved file in bf16 on the {VALIDATION} pairs: loss **{loss:.4f}** nats per pair, accuracy {accuracy:.1%}.
"""


def main() -> None:
    """Train, save, and write the pairs and the model card."""
    parser = argparse.ArgumentParser(description="Train the reward checkpoint.")
    parser.add_argument("--steps", type=int, default=500, help="number of optimizer steps")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write the checkpoint to")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="file to write the pairs of the validation to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    corpus = load_corpus()
    config = Qwen3Config.from_dict({**HUB_CONFIG, "torch_dtype": "float32"})
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa")
    started = time.monotonic()
    train(model, corpus.train, args.steps)
    minutes = (time.monotonic() - started) / 60
    model.to(torch.bfloat16).save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)
    (args.out / "config.json").write_text(json.dumps(HUB_CONFIG, indent=2) + "\n")
    ids, lengths = draw(corpus.held_out_source, VALIDATION, torch.Generator().manual_seed(SEED + 1), HARD_SPAN)
    rows = [row[:length].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)]
    pairs = ({"chosen": chosen, "rejected": rejected} for chosen, rejected in zip(rows[0::2], rows[1::2], strict=True))
    args.pairs.write_text("".join(json.dumps(pair, separators=(",", ":")) + "\n" for pair in pairs))
    saved = AutoModelForSequenceClassification.from_pretrained(args.out, dtype=torch.bfloat16).eval()
    with torch.inference_mode():
        loss, accuracy = loss_of(saved, ids, lengths)
    (args.out / "README.md").write_text(card(args.steps, minutes, loss.item(), accuracy.item(), model.num_parameters()))


if __name__ == "__main__":
    main()
