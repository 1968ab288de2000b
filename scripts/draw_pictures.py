"""Writes recipes/pictures.safetensors: sequences of text and images for the checkpoint `pictures`.

`python -m scripts.draw_pictures`. Text before the images is random, that behind them sampled from the recipe's
candidate. What a vision tower would have given is random too: small numbers beside an offset, which its last layer
takes away again.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from moeparity.bisection.prepare import prepare
from moeparity.bisection.sample import generate
from moeparity.inputs.tokens.tensorfile import file_contents

RECIPE = Path(__file__).parents[1] / "recipes/pictures.yaml"
SEQUENCES, HIDDEN, LAYERS = 32, 64, 4
TEXT, BEGIN, END, IMAGE = -1, 252, 253, 254
PROMPT = [*[TEXT] * 4, BEGIN, *[IMAGE] * 4, END, *[TEXT] * 2, BEGIN, *[IMAGE] * 3, END]
GRIDS = [[1, 4, 4], [1, 2, 6]]
OFFSET, SIGNAL = 60.0, 0.05
SAMPLE = {"from": "candidate", "new_tokens": 12, "temperature": 1.0, "seed": 4}
"""With other seeds the model, which is not trained, samples a token of an image."""


def prompts() -> dict[str, torch.Tensor]:
    """The tensors of a token file: the text up to the images, and what the tower gave for these."""
    generator = torch.Generator().manual_seed(39)
    row = torch.tensor(PROMPT)
    ids = torch.randint(0, 250, (SEQUENCES, len(row)), generator=generator)
    offset = torch.randn(HIDDEN, generator=generator) * OFFSET
    count = SEQUENCES * PROMPT.count(IMAGE)
    first, *further = (torch.randn(count, HIDDEN, generator=generator) * SIGNAL for _ in range(1 + LAYERS))
    return {
        "input_ids": torch.where(row == TEXT, ids, row),
        "image_grid_thw": torch.tensor(GRIDS * SEQUENCES),
        "image_embeds": (first + offset).bfloat16(),
        "deepstack_embeds": torch.stack([*further[:-1], further[-1] - offset]).bfloat16(),
    }


def main() -> None:
    """Writes the file; all tokens of it are scored."""
    fields = yaml.safe_load(RECIPE.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        save_file(prompts(), Path(folder) / "prompts.safetensors")
        request = {
            **{key: value for key, value in fields.items() if key not in {"expect", "swap"}},
            "checkpoint": str((RECIPE.parent / fields["checkpoint"]).resolve()),
            "tokens": {"file": "prompts.safetensors", "sample": SAMPLE},
        }
        (Path(folder) / "recipe.yaml").write_text(yaml.safe_dump(request), "utf-8")
        tokens = generate(prepare(Path(folder) / "recipe.yaml", device="cpu")).tokens
    tensors, metadata = file_contents(replace(tokens, loss_mask=torch.ones_like(tokens.loss_mask)))
    save_file(tensors, RECIPE.with_suffix(".safetensors"), metadata)


if __name__ == "__main__":
    main()
