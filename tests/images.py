"""Sequences with images, and small models for them: random pixels, and what live vision towers make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

from tests.checkpoint_factory import make_random
from tests.hf.reference import ARGUMENTS
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


_TOWER = {key: x for key, x in SMALL["qwen3_vl_moe"]["vision_config"].items() if key != "deepstack_visual_indexes"}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
FIELDS: dict[str, dict[str, Any]] = {
    "qwen3_vl_moe": SMALL["qwen3_vl_moe"],
    "glm4v_moe": SMALL["glm4v_moe"],
    # Positions of one axis.
    "kimi_k25": SMALL["kimi_k25"],
    # Without deepstack.
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": {**SMALL["qwen3_5_moe"], "rope_parameters": _ROPE},
        "vision_config": {**_TOWER, "model_type": "qwen3_5_moe_vision"},
    },
}
CLASSES: dict[str, Any] = {
    "qwen3_vl_moe": transformers.Qwen3VLMoeForConditionalGeneration,
    "glm4v_moe": transformers.Glm4vMoeForConditionalGeneration,
    "kimi_k25": transformers.Kimi_K25ForConditionalGeneration,
    "qwen3_5_moe": transformers.Qwen3_5MoeForConditionalGeneration,
}


def make_with_images(name: str, folder: Path) -> Path:
    """A small model with a vision tower, and with image tokens inside its vocabulary."""
    fields = {**FIELDS[name], "image_token_id": IMAGE, "video_token_id": VIDEO}
    return make_random(fields, folder, unlisted=CLASSES[name])


@lru_cache(maxsize=4)
def load(folder: Path, profile: str, dtype: torch.dtype) -> Any:
    """The whole model, tower included, as transformers loads it; those of the last profiles and dtypes are kept."""
    whole = CLASSES[AutoConfig.from_pretrained(folder).model_type]
    return whole.from_pretrained(folder, dtype=dtype, **ARGUMENTS[profile]).eval()


@dataclass(frozen=True)
class Sample:
    """Sequences with their padding: ids and mask int64 [B, T]; pixels [patches, PIXELS] and grids int64 [images, 3]."""

    ids: Tensor
    mask: Tensor
    pixels: Tensor
    grids: Tensor

    def arguments(self, live: Any) -> dict[str, Tensor]:
        """What transformers' forward of a model is given beside ids and mask."""
        if not len(self.grids):
            return {}
        of_images = {"pixel_values": self._pixels(live), "image_grid_thw": self.grids}
        if live.config.model_type == "kimi_k25":
            return of_images
        return {**of_images, "mm_token_type_ids": (self.ids == IMAGE).int()}

    def _pixels(self, live: Any) -> Tensor:
        """The pixels as a model's tower takes them: Kimi K2.5's those of one moment, as pictures."""
        if live.config.model_type != "kimi_k25":
            return self.pixels
        return self.pixels.view(-1, 3, 2, 4, 4)[:, :, 0].to(live.dtype)

    def images(self, live: Any) -> dict[str, Tensor]:
        """What the vision tower of a live model gives, as a token file has it; {} without images."""
        if not len(self.grids):
            return {}
        with torch.no_grad():
            of_tower = live.model.get_image_features(self._pixels(live), self.grids, return_dict=True)
        images = {"image_grid_thw": self.grids, "image_embeds": torch.cat(of_tower.pooler_output)}
        layers = getattr(of_tower, "deepstack_features", None)
        deepstack = {"deepstack_embeds": torch.stack([torch.cat(layer) for layer in layers])} if layers else {}
        return {**images, **deepstack}


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
