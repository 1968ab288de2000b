"""Sequences with images for Qwen3-VL-MoE: random pixels, and what transformers' own vision tower makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.checkpoint_factory import make_random
from tests.small_models import SMALL

IMAGE, VIDEO, BEGIN, END, PAD = 500, 501, 502, 503, 7
"""Token ids; text has others below them."""
MERGE = 2
PIXELS = 3 * 2 * 4 * 4
"""Numbers of a patch: colours, moments, height and width."""

Grid = tuple[int, int, int]
Part = int | Grid
"""So many tokens of text, or the patches of an image in time, height and width."""

TEXT: tuple[Sequence[Part], ...] = ((9,), (4,))
ONE: tuple[Sequence[Part], ...] = ((3, (1, 4, 6), 2), (9,))
TWO: tuple[Sequence[Part], ...] = ((2, (1, 2, 8), 3, (1, 4, 4), 1), (1, (1, 6, 4), 3, (1, 2, 2)))
ROW: tuple[Sequence[Part], ...] = ((1, (1, 2, 8), 4),)
"""An image of one row of tokens."""


def make_with_images(folder: Path, **fields: Any) -> Path:
    """The small Qwen3-VL-MoE with image tokens inside its vocabulary."""
    return make_random({**SMALL["qwen3_vl_moe"], "image_token_id": IMAGE, "video_token_id": VIDEO, **fields}, folder)


@dataclass(frozen=True)
class Sample:
    """Sequences with their padding: ids and mask int64 [B, T]; pixels [patches, PIXELS] and grids int64 [images, 3]."""

    ids: Tensor
    mask: Tensor
    pixels: Tensor
    grids: Tensor

    @property
    def arguments(self) -> dict[str, Tensor]:
        """What transformers' forward is given beside ids and mask."""
        if not len(self.grids):
            return {}
        types = (self.ids == IMAGE).int()
        return {"pixel_values": self.pixels, "image_grid_thw": self.grids, "mm_token_type_ids": types}

    def images(self, live: Any) -> dict[str, Tensor]:
        """What the vision tower of a live model gives, as a token file has it; {} without images."""
        if not len(self.grids):
            return {}
        with torch.no_grad():
            of_tower = live.model.get_image_features(self.pixels, self.grids, return_dict=True)
        deepstack = torch.stack([torch.cat(layer) for layer in of_tower.deepstack_features])
        return {
            "image_grid_thw": self.grids,
            "image_embeds": torch.cat(of_tower.pooler_output),
            "deepstack_embeds": deepstack,
        }


def sample(sequences: Sequence[Sequence[Part]], side: str = "right") -> Sample:
    """Random text and images, padded to one length at that side; the same parts give the same."""
    generator = torch.Generator().manual_seed(len(sequences) + sum(map(len, sequences)))
    rows = [[token for part in parts for token in _tokens(part, generator)] for parts in sequences]
    length = max(map(len, rows))
    pads = [[0] * (length - len(row)) for row in rows]
    grids = [part for parts in sequences for part in parts if not isinstance(part, int)]
    patches = sum(time * height * width for time, height, width in grids)
    pairs = list(zip(rows, pads, strict=True))
    ids = [[PAD for _ in pad] + row if side == "left" else row + [PAD for _ in pad] for row, pad in pairs]
    mask = [pad + [1] * len(row) if side == "left" else [1] * len(row) + pad for row, pad in pairs]
    return Sample(
        ids=torch.tensor(ids),
        mask=torch.tensor(mask),
        pixels=torch.randn(patches, PIXELS, generator=generator),
        grids=torch.tensor(grids, dtype=torch.int64).reshape(-1, 3),
    )


def _tokens(part: Part, generator: torch.Generator) -> list[int]:
    if isinstance(part, int):
        drawn: list[int] = torch.randint(IMAGE, (part,), generator=generator).tolist()
        return drawn
    time, height, width = part
    return [BEGIN, *[IMAGE] * (time * height * width // MERGE**2), END]
