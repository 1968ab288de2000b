"""Is the fp8 grid made of a trainer's fp32 master, or of what it sends in bf16? The case of xtuner#2044, on a CPU.

`python -m benchmarks.masters FOLDER` lets transformers take a few steps of AdamW from the shipped checkpoint, in fp32,
on a recipe's tokens. It writes the fp32 master and `recipe.yaml`: two sides that round the weights of linear layers and
experts to fp8 by blocks, one from the master, one from the master rounded to bf16. Nothing else is unlike. Both are
bisected before the first step, where the master is what the checkpoint has in bf16, and after the last.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parents[1]
CHECKPOINT, TOKENS = ROOT / "checkpoints/quickstart", ROOT / "recipes/rounding.safetensors"
BATCH, RATE = 8, 1e-5
RECIPE = """\
# A trainer that rounds its fp32 master to fp8 against a rollout that rounds what was exported in bf16 (xtuner#2044).
kind: recipe
checkpoint: {checkpoint}
tokens: {{file: {tokens}, sampled_from: candidate}}
reference:
  profile: hf-autocast-bf16
  dtype: fp32
  micro_batch: 8
  set: {{{grid}, {of_linear}: fp32, {of_experts}: fp32}}
candidate:
  profile: hf-autocast-bf16
  dtype: fp32
  micro_batch: 8
  set: {{{grid}, {of_linear}: bf16, {of_experts}: bf16}}
gate: {{metric: k3, below: 1e-6}}
floor: false
"""
_LINEAR, _EXPERTS = "layers[*].attention.*_proj", "layers[*].moe.experts"
_GRID = {
    f"{node}:{choice}": value
    for node in (_LINEAR, _EXPERTS)
    for choice, value in (("weights", "fp8_e4m3"), ("weight_scales", "block"), ("weight_block", 16))
}


def trained(folder: Path, steps: int) -> Path:
    """The shipped checkpoint after so many steps, in fp32, in the hub's layout."""
    torch.manual_seed(0)
    ids = load_file(TOKENS)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(steps):
        batch = ids[torch.arange(step * BATCH, (step + 1) * BATCH) % len(ids)]
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def recipe(checkpoint: Path) -> Path:
    """The recipe beside a checkpoint."""
    path = checkpoint / "recipe.yaml"
    names = {"of_linear": f'"{_LINEAR}:master"', "of_experts": f'"{_EXPERTS}:master"'}
    grid = ", ".join(f'"{place}": {value}' for place, value in _GRID.items())
    path.write_text(RECIPE.format(checkpoint=checkpoint.resolve(), tokens=TOKENS, grid=grid, **names))
    return path


def main() -> None:
    """Train, write, bisect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    for steps in (0, arguments.steps):
        path = recipe(trained(arguments.folder / f"step-{steps}", steps))
        print(f"after {steps} steps of AdamW, learning rate {RATE}:", flush=True)
        subprocess.run(  # noqa: S603
            [sys.executable, "-m", "moeparity.cli", "bisect", str(path), "--device", "cpu"],
            check=False,
        )


if __name__ == "__main__":
    main()
