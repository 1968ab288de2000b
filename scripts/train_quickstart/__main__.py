"""Train the small byte-level Qwen3-MoE checkpoint that ships in checkpoints/quickstart/.

Run from the repository root, in an environment with torch, transformers and safetensors:

    python scripts/train_quickstart.py

The same Python standard library, torch version, CPU type and --threads give the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from moeparity.inputs.machine import cpu_name

SEED = 20261120
STEPS = 3700
THREADS = 2
OUT = Path("checkpoints/quickstart")
SEQ_LEN = 256
BATCH = 12
PEAK_LR = 3e-3
WARMUP = 100
WEIGHT_DECAY = 0.1
AUX_COEF = 0.01
LOG_EVERY = 50
MAX_FILE_BYTES = 4_000_000
TEST_FOLDERS = {"test", "tests", "idle_test"}

# Field names of the hub's Qwen3-MoE configs (transformers 4.x). transformers 5 would save num_local_experts,
# rope_parameters and dtype instead, which is not what a reader of hub checkpoints meets.
HUB_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "decoder_sparse_step": 1,
    "eos_token_id": None,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 96,
    "initializer_range": 0.02,
    "intermediate_size": 192,
    "max_position_embeddings": 512,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts": 24,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": AUX_COEF,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 256,
}


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes held out, with the number of files behind each.

    `held_out_source` leaves out the tables in `encodings/`, which are near-copies of tables in the training data.
    """

    train: Tensor
    held_out: Tensor
    held_out_source: Tensor
    train_files: int
    held_out_files: int


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss and, for each layer, every expert's share of the routed tokens."""

    nats_per_byte: float
    expert_shares: list[Tensor]


def is_source(relative: Path) -> bool:
    """Whether a standard library file belongs to the corpus."""
    # _sysconfigdata* is generated when Python is built and holds that machine's paths.
    excluded = "site-packages" in relative.parts or relative.name.startswith("_sysconfigdata")
    return not excluded and TEST_FOLDERS.isdisjoint(relative.parts)


def load_corpus() -> Corpus:
    """Read the standard library; about one file in twenty, chosen by the hash of its path, is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    source: list[bytes] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if is_source(relative):
            digest = hashlib.sha256(relative.as_posix().encode()).digest()
            is_held_out = int.from_bytes(digest[:4], "big") % 20 == 0
            parts[is_held_out].append(path.read_bytes())
            if is_held_out and "encodings" not in relative.parts:
                source.append(path.read_bytes())
    train, held_out, ordinary = (
        torch.frombuffer(bytearray(b"".join(p)), dtype=torch.uint8) for p in (parts[False], parts[True], source)
    )
    return Corpus(train, held_out, ordinary, len(parts[False]), len(parts[True]))


def windows(data: Tensor, starts: Tensor) -> Tensor:
    """Stack the windows of SEQ_LEN inputs plus one last target that begin at `starts`."""
    return data[starts[:, None] + torch.arange(SEQ_LEN + 1)].long()


def batches(data: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield training batches for ever; each pass visits disjoint windows, so nothing repeats within it."""
    while True:
        # A fresh offset per pass keeps the window borders from falling on the same bytes every time.
        offset = int(torch.randint(SEQ_LEN, (1,), generator=generator))
        count = (len(data) - 1 - offset) // SEQ_LEN
        order = torch.randperm(count, generator=generator) * SEQ_LEN + offset
        for chunk in order[: count - count % BATCH].split(BATCH):
            yield windows(data, chunk)


def build_model() -> Qwen3MoeForCausalLM:
    """Create the untrained fp32 model."""
    config = Qwen3MoeConfig.from_dict({**HUB_CONFIG, "torch_dtype": "float32"})
    # At this size the eager loop over experts was the fastest implementation on CPU.
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation="eager")


def forward(model: Qwen3MoeForCausalLM, batch: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the mean next-byte loss and the router logits of every layer."""
    # The inner model is called because the outer one adds a balance loss pooled over layers, under which a layer
    # may stay unbalanced as long as another one makes up for it.
    out = model.model(input_ids=batch[:, :-1], output_router_logits=True, use_cache=False)
    logits = model.lm_head(out.last_hidden_state).float()
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()), out.router_logits


def expert_counts(router_logits: Tensor) -> Tensor:
    """Count how many tokens one layer's router sends to each expert."""
    chosen = router_logits.topk(HUB_CONFIG["num_experts_per_tok"], dim=-1).indices
    return chosen.flatten().bincount(minlength=HUB_CONFIG["num_experts"])


def balance_loss(router_logits: tuple[Tensor, ...]) -> Tensor:
    """Switch-style load-balance loss, averaged over layers; 1 when the experts share the tokens equally."""
    losses = []
    for logits in router_logits:
        counts = expert_counts(logits)
        probs = logits.softmax(dim=-1).mean(dim=0)
        losses.append(len(probs) * (counts / counts.sum() * probs).sum())
    return torch.stack(losses).mean()


def build_optimizer(model: Qwen3MoeForCausalLM) -> torch.optim.AdamW:
    """AdamW that leaves the norm weights, which are centred on one, undecayed."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), fused=True)


def lr_scale(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def train(model: Qwen3MoeForCausalLM, data: Tensor, steps: int) -> None:
    """Train in place for a fixed number of steps."""
    optimizer = build_optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_scale(step, steps))
    source = batches(data, torch.Generator().manual_seed(SEED))
    started, running = time.monotonic(), 0.0
    model.train()
    for step in range(1, steps + 1):
        loss, router_logits = forward(model, next(source))
        balance = balance_loss(router_logits)
        (loss + AUX_COEF * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running += loss.item()
        if step % LOG_EVERY == 0:
            elapsed = time.monotonic() - started
            mean = running / LOG_EVERY
            print(f"step {step}/{steps} loss {mean:.4f} balance {balance.item():.3f} {elapsed:.0f}s", flush=True)
            running = 0.0


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


def evaluate_saved(corpus: Corpus, out: Path) -> str:
    """The evaluation section of the model card, measured on the written file."""
    model = load_saved(out)
    size = (out / "model.safetensors").stat().st_size
    return evaluation_section(evaluate(model, corpus.held_out), evaluate(model, corpus.held_out_source), size)


def training_section(corpus: Corpus, args: argparse.Namespace, minutes: float) -> str:
    """Describe the data and the training run for the model card."""
    passes = args.steps * BATCH * SEQ_LEN / len(corpus.train)
    return f"""## Data and licence

Source files (`*.py`) of the standard library of Python {platform.python_version()}, as found in
`sysconfig.get_paths()["stdlib"]`, without `site-packages`, test folders and the build-generated `_sysconfigdata*`.
That code is under the PSF License Agreement (version 2) and the licences it lists for incorporated software.
Trained on {corpus.train_files} files ({len(corpus.train):,} bytes); {corpus.held_out_files} files
({len(corpus.held_out):,} bytes), chosen by the SHA-256 of their relative paths, were held out.

## Training

    python scripts/train_quickstart.py --steps {args.steps} --threads {args.threads}

{args.steps} steps of {BATCH} sequences of {SEQ_LEN} bytes ({passes:.2f} passes over the data) in fp32, seed {SEED}.
AdamW: peak learning rate {PEAK_LR}, {WARMUP} warm-up steps, cosine to zero, weight decay {WEIGHT_DECAY}.
Load-balance loss per layer with coefficient {AUX_COEF}. The weights were then rounded to bf16.

- wall time of the training: {minutes:.1f} minutes
- machine: {cpu_name()}, {args.threads} threads, no accelerator
- torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}
- date: {date.today().isoformat()}
"""


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


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the quickstart checkpoint.")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of optimizer steps")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write the checkpoint to")
    parser.add_argument("--threads", type=int, default=THREADS, help="torch CPU threads")
    parser.add_argument("--evaluate", action="store_true", help="only print the evaluation of the saved checkpoint")
    return parser.parse_args()


def main() -> None:
    """Train, save, reload, evaluate and write the model card."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    # Every buffer is written before it is read here; filling it first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    corpus = load_corpus()
    if args.evaluate:
        print(evaluate_saved(corpus, args.out))
        return
    model = build_model()
    started = time.monotonic()
    train(model, corpus.train, args.steps)
    minutes = (time.monotonic() - started) / 60
    save(model, args.out)
    card = model_card(training_section(corpus, args, minutes), evaluate_saved(corpus, args.out), model.num_parameters())
    (args.out / "README.md").write_text(card)


if __name__ == "__main__":
    main()
