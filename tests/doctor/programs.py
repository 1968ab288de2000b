"""Evidence that transformers left: one model of it samples, another one scores, and either may have a fault."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moeparity.cli.schemas import report_schema
from tests.command import inside

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "checkpoints" / "quickstart"
TOKENS = ROOT / "recipes" / "rounding.safetensors"
Patch = Callable[[Any], None]
_BEYOND = re.compile(r"\.layers\.[23]\.")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


def two_layers(folder: Path, *, experts: int = 24, top_k: int = 6) -> Path:
    """The first two layers of the shipped checkpoint, with its ends, and with its first experts."""
    shutil.copytree(QUICKSTART, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "max_window_layers": 2, "num_experts": experts, "num_experts_per_tok": top_k}
    (folder / "config.json").write_text(json.dumps(config))
    for file in folder.glob("*.safetensors"):
        weights = {name: w for name, w in load_file(file).items() if not _BEYOND.search(name)}
        weights = {n: w for n, w in weights.items() if (of := _EXPERT.search(n)) is None or int(of[1]) < experts}
        weights |= {name: w[:experts].clone() for name, w in weights.items() if name.endswith("mlp.gate.weight")}
        save_file(weights, file, {"format": "pt"})
    return folder


def drifted(
    checkpoint: Path, folder: Path, keep: Callable[[str], bool] | None = None, *, fraction: float = 0.2
) -> Path:
    """The checkpoint with all its weights but those to `keep` moved by a fraction, as an update moves them; always
    in the same way.
    """
    shutil.copytree(checkpoint, folder)
    for file in folder.glob("*.safetensors"):
        moved = {
            name: w if keep is not None and keep(name) else _moved(name, w, fraction)
            for name, w in load_file(file).items()
        }
        save_file(moved, file, {"format": "pt"})
    return folder


def _moved(name: str, weight: torch.Tensor, fraction: float) -> torch.Tensor:
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (weight.float() * (1 + fraction * torch.randn(weight.shape, generator=draw))).to(weight.dtype)


def tokens(sequences: int, length: int) -> torch.Tensor:
    with safe_open(TOKENS, "pt") as file:
        return file.get_tensor("input_ids")[:sequences, :length]


def scored(
    checkpoint: Path,
    ids: torch.Tensor,
    batch: int,
    *,
    temperature: float = 1.0,
    patch: Patch | None = None,
    kernel: str = "sdpa",
    experts: str = "grouped_mm",
    pads: int = 0,
) -> torch.Tensor:
    """What a transformers of this checkpoint says of the tokens, in batches of a size: fp32 [B, T - 1] in nats.

    kernel, experts: implementations of attention and of the experts. pads: so many before each sequence, or behind it
    if there are less than none; positions are counted in the sequence.
    """
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, attn_implementation=kernel, experts_implementation=experts
    ).eval()
    if patch is not None:
        patch(model)
    rows = []
    first, length = max(pads, 0), ids.shape[1]
    with torch.no_grad():
        for part in ids.split(batch):
            padded = part.new_zeros(len(part), length + abs(pads))
            mask = torch.zeros_like(padded)
            padded[:, first : first + length], mask[:, first : first + length] = part, 1
            places = (mask.cumsum(-1) - 1).clamp_min(0)
            options = {"attention_mask": mask, "position_ids": places} if pads else {}
            logits = model(padded, use_cache=False, **options).logits[:, first : first + length - 1]
            logprobs = torch.log_softmax(logits.float() / temperature, -1)
            rows.append(logprobs.gather(-1, part[:, 1:, None]).squeeze(-1))
    return torch.cat(rows)


def log(
    path: Path,
    ids: torch.Tensor,
    sampler: torch.Tensor | None,
    trainer: torch.Tensor | None,
    *,
    prompt: int = 1,
    **further: Any,
) -> Path:
    """A log in moeparity's own format."""
    columns = {"logprobs": sampler, "trainer_logprobs": trainer}
    with path.open("w", encoding="utf-8") as file:
        for i, row in enumerate(ids.tolist()):
            record = {"id": str(i), "input_ids": row, "mask": [0] * prompt + [1] * (len(row) - prompt), **further}
            record |= {name: [None, *values[i].tolist()] for name, values in columns.items() if values is not None}
            file.write(json.dumps(record) + "\n")
    return path


def command(*arguments: str | Path, out: Path) -> dict[str, Any]:
    """The JSON of `moeparity doctor ARGUMENTS`, valid by its schema, with the exit code and what was printed."""
    done = inside("doctor", *arguments, "--device", "cpu", "--json", out)
    assert done.returncode in {0, 1, 3}, done.stderr
    report: dict[str, Any] = json.loads(out.read_text())
    jsonschema.validate(report, report_schema("examination"))
    return {**report, "exit": done.returncode, "printed": " ".join(done.stdout.split())}
