"""How well near ties are predicted: lift of the top 5 % of tokens, beside a plain top-k margin and the most there is.

    python -m benchmarks.mine [--prompts 96] [--threads 2]

Prompts are pieces of this repository's own text, none of which a recipe holds: the recipe's sequences calibrate, both
sides then run every prompt. The shipped checkpoint under several of its recipes, and wider random ones made here.

Exits with 1 where the prediction is not better than the plain margin.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.turns import header
from moeparity.bisection.mine.report import Mined
from moeparity.bisection.mine.run import MineRequest, mine

ROOT = Path(__file__).parents[1]
RECIPES = ("quickstart", "autocast", "moe-aggregation", "fp32-background", "tensor-parallel")
LENGTH, STEP = 96, 397
"""Bytes of a prompt, and from the start of one to that of the next in the same file."""
CALIBRATION = 24
WIDE = {
    "model_type": "qwen3_moe",
    "vocab_size": 256,
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
GROUPED = {
    "model_type": "deepseek_v3",
    "vocab_size": 256,
    "hidden_size": 512,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_group": 8,
    "topk_group": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
RANDOM = {"wide": WIDE, "grouped": GROUPED}
"""Random checkpoints, from whose configuration weights are made."""


def main() -> int:
    """Measure every recipe, print a row each, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(header(options.threads))
    print(f"{options.prompts} prompts of {LENGTH} bytes, 64 draws, at most 32 sequences calibrated on")
    print(
        "\n| recipe | tokens that flip | expected | lift | of the plain margin | at most |\n|---|---|---|---|---|---|"
    )
    better = True
    with tempfile.TemporaryDirectory() as folder:
        prompts = written(Path(folder) / "prompts.jsonl", options.prompts)
        recipes = [(name, ROOT / "recipes" / f"{name}.yaml") for name in RECIPES]
        recipes += [(name, random(Path(folder) / name, config)) for name, config in RANDOM.items()]
        for name, recipe in recipes:
            request = MineRequest(file=prompts, top=options.prompts, tokenizer="bytes", check=True)
            better &= row(name, mine(recipe, request, device="cpu"))
    return 0 if better else 1


def row(name: str, mined: Mined) -> bool:
    """Print one recipe's figures; whether the prediction is better than the margin."""
    assert mined.check is not None
    draw = mined.check.drawn
    print(
        f"| {name} | {100 * draw.flipped / draw.tokens:.2f} % | {100 * draw.expected / draw.tokens:.2f} % "
        f"| {draw.lift:.2f} | {draw.margin_lift:.2f} | {draw.ceiling:.2f} |",
        flush=True,
    )
    return draw.lift > draw.margin_lift


def written(path: Path, count: int) -> Path:
    """The first pieces of the repository's text, taken from all files in turn."""
    pieces = _pieces()
    lines = (json.dumps({"text": next(pieces)}) for _ in range(count))
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _pieces() -> Iterator[str]:
    files = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "moeparity").rglob("*.py"))]
    texts = [file.read_bytes() for file in files]
    for start in range(0, max(map(len, texts)), STEP):
        for text in texts:
            piece = text[start : start + LENGTH]
            if len(piece) == LENGTH and piece.isascii():
                yield piece.decode("ascii")


def random(folder: Path, config: dict[str, object]) -> Path:
    """A recipe of weights made from a seed: Hugging Face's eager against its default numerics."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(32, 127, (CALIBRATION, LENGTH), generator=generator)
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    recipe = {
        "kind": "recipe",
        "checkpoint": ".",
        "weights": "synthetic(0)",
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": {"profile": "hf-eager", "micro_batch": 8},
        "candidate": {"profile": "hf-eager", "micro_batch": 8, "set": {"layers[*].moe.combine:accumulate": "fp32"}},
        "gate": {"metric": "k3", "below": 1e-4},
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe), "utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
