"""Sample a recipe's tokens from its candidate and write the token file the recipe names.

    python scripts/sample_tokens.py recipes/quickstart.yaml

Every sequence starts with one newline byte and is sampled at temperature 1 without truncation, so that k3 on these
tokens estimates KL(candidate || reference). Each step runs the candidate over the whole prefix, with the recipe's
micro-batch: these are prefill numerics, as in the bisection, not those of a decode loop with a cache.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from moeparity.model import forward, open_model
from moeparity.spec.files import read_recipe

NEWLINE = 10


def sample(recipe_path: Path, sequences: int, length: int, seed: int) -> torch.Tensor:
    """int64 [sequences, length] sampled from the candidate of a recipe, on the CPU."""
    recipe = read_recipe(recipe_path)
    model = open_model(recipe_path.parent / recipe.checkpoint, device="cpu", residency="resident")
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((sequences, 1), NEWLINE)
    while ids.shape[1] < length:
        out = forward(
            model,
            ids,
            profile=recipe.candidate.profile,
            micro_batch=recipe.candidate.micro_batch,
            dtype=recipe.candidate.dtype,
            settings=recipe.candidate.set,
        )
        probabilities = out["logits"][:, -1].double().softmax(-1)
        ids = torch.cat((ids, torch.multinomial(probabilities, 1, generator=generator)), dim=1)
    return ids


def main() -> None:
    """Read the command line, sample, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = time.perf_counter()
    ids = sample(arguments.recipe, arguments.sequences, arguments.length, arguments.seed)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[:, 0] = False
    target = arguments.recipe.parent / read_recipe(arguments.recipe).tokens.file
    save_file({"input_ids": ids, "loss_mask": mask}, target)
    print(f"{target}: {list(ids.shape)} in {time.perf_counter() - started:.0f} s")
    print(bytes(ids[0].tolist()).decode("utf-8", errors="replace"))


if __name__ == "__main__":
    main()
