"""Draw recipes, hold each of their trials to its written-out recipe, and count."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.planted import checkpoints
from benchmarks.written_out import draw
from benchmarks.written_out.trials import compared
from moeparity.errors import MoeparityError
from moeparity.inputs.machine import cpu_name
from moeparity.inputs.model import Model, open_model

FAMILIES = ("qwen3_moe", "glm4_moe", "qwen2_moe", "mixtral")
LAYERS, TOKENS = 3, 12
AS_IT_SHOULD_BE = {"equal", "refused by both", "cannot be written"}


def opened(folder: Path, family: str, layers: int = LAYERS) -> Model:
    """A small random checkpoint of a family."""
    checkpoints.write(folder / family, family, seed=1, layers=layers, dtype="bfloat16", damped=0.5)
    return open_model(folder / family, device="cpu", residency="resident")


def tokens(folder: Path, vocab: int = 128) -> Path:
    """Random tokens for all recipes."""
    ids = torch.randint(vocab, (draw.SEQUENCES, TOKENS), generator=torch.Generator().manual_seed(2))
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    return folder / "tokens.safetensors"


def main() -> int:
    """Print a line for each recipe and the sum; 1 where a trial is not its recipe."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.written_out", description=__doc__)
    parser.add_argument("--recipes", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    finished, seed = 0, options.first
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {family: opened(folder, family) for family in FAMILIES}
        ids = tokens(folder)
        while finished < options.recipes:
            family = FAMILIES[seed % len(FAMILIES)]
            recipe_folder = folder / str(seed)
            recipe_folder.mkdir()
            path = draw.write(recipe_folder, folder / family, ids, models[family].graph, seed)
            seed += 1
            try:
                rows = list(compared(path, models[family]))
            except MoeparityError as error:
                print(f"seed {seed - 1}: no recipe: {str(error)[:160]}", flush=True)
                continue
            finished += 1
            counts = Counter(row.outcome for row in rows)
            outcomes += counts
            print(f"seed {seed - 1}, {family}: {dict(counts)}", flush=True)
            for row in rows:
                if row.outcome not in AS_IT_SHOULD_BE:
                    print(f"  {row.outcome}: {row.trial}")
    print(f"{finished} recipes: {dict(outcomes)}")
    print(f"{cpu_name()}, torch {torch.__version__}, Python {platform.python_version()}")
    return int(not AS_IT_SHOULD_BE.issuperset(outcomes))


if __name__ == "__main__":
    sys.exit(main())
