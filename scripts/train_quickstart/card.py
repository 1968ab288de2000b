"""The model card."""

from __future__ import annotations

import platform
from datetime import date
from pathlib import Path

import torch
import transformers

from moeparity.inputs.machine import cpu_name
from scripts.train_quickstart.configuration import (
    AUX_COEF,
    BATCH,
    HUB_CONFIG,
    PEAK_LR,
    SEED,
    SEQ_LEN,
    WARMUP,
    WEIGHT_DECAY,
)
from scripts.train_quickstart.corpus import Corpus
from scripts.train_quickstart.evaluation import Evaluation, evaluate, load_saved


def training_section(corpus: Corpus, steps: int, threads: int, minutes: float) -> str:
    """Describe the data and the training run for the model card."""
    passes = steps * BATCH * SEQ_LEN / len(corpus.train)
    return f"""## Data and licence

Source files (`*.py`) of the standard library of Python {platform.python_version()}, as found in
`sysconfig.get_paths()["stdlib"]`, without `site-packages`, test folders and the build-generated `_sysconfigdata*`.
That code is under the PSF License Agreement (version 2) and the licences it lists for incorporated software.
Trained on {corpus.train_files} files ({len(corpus.train):,} bytes); {corpus.held_out_files} files
({len(corpus.held_out):,} bytes), chosen by the SHA-256 of their relative paths, were held out.

## Training

    python -m scripts.train_quickstart --steps {steps} --threads {threads}

{steps} steps of {BATCH} sequences of {SEQ_LEN} bytes ({passes:.2f} passes over the data) in fp32, seed {SEED}.
AdamW: peak learning rate {PEAK_LR}, {WARMUP} warm-up steps, cosine to zero, weight decay {WEIGHT_DECAY}.
Load-balance loss per layer with coefficient {AUX_COEF}. The weights were then rounded to bf16.

- wall time of the training: {minutes:.1f} minutes
- machine: {cpu_name()}, {threads} threads, no accelerator
- torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}
- date: {date.today().isoformat()}
"""


def evaluate_saved(corpus: Corpus, out: Path) -> str:
    """The evaluation section of the model card, measured on the written file."""
    model = load_saved(out)
    size = (out / "model.safetensors").stat().st_size
    return evaluation_section(evaluate(model, corpus.held_out), evaluate(model, corpus.held_out_source), size)


def evaluation_section(result: Evaluation, source: Evaluation, size: int) -> str:
    """Describe the saved file's quality and expert use for the model card."""
    rows = [f"| {i} | {s.min():.2%} | {s.max():.2%} |" for i, s in enumerate(result.expert_shares)]
    table = "\n".join(rows)
    return f"""## Evaluation

The saved file ({size:,} bytes), loaded and run in bf16 on the held-out files in disjoint windows of {SEQ_LEN} bytes:
**{source.nats_per_byte:.3f} nats/byte** on ordinary source; {result.nats_per_byte:.3f} with the tables of `encodings/`,
which resemble tables in the training data.

Share of the routed tokens taken by the least and the most used expert of each layer, on the same windows
(an equal split would be {1 / HUB_CONFIG["num_experts"]:.2%}):

| layer | min | max |
|---|---|---|
{table}
"""


def model_card(training: str, evaluation: str, parameters: int) -> str:
    """Compose the whole README.md."""
    c, active = HUB_CONFIG, HUB_CONFIG["num_experts_per_tok"]
    return f"""# quickstart: a small byte-level mixture-of-experts model

A `Qwen3MoeForCausalLM` that is small enough to ship with the project, yet trained, so that its activations, router
choices and loss behave like those of a real model. It predicts the next byte of Python source. It is meant for
examples and tests, not for writing code.

## Architecture

{parameters:,} parameters in bf16; tokens are the 256 byte values, so there is no tokenizer.

- {c["num_hidden_layers"]} layers, hidden size {c["hidden_size"]}, untied embeddings
- {c["num_attention_heads"]} attention heads of size {c["head_dim"]}, {c["num_key_value_heads"]} key/value heads,
  RoPE base {c["rope_theta"]:.0f}
- {c["num_experts"]} experts of width {c["moe_intermediate_size"]} in every layer, {active} active per token
  with normalised weights

`config.json` and the tensor names follow the hub's Qwen3-MoE checkpoints.

{training}
{evaluation}"""
