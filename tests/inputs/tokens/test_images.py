"""Images among tokens: their positions against transformers' own, files that hold them, columns and rows of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeModel

from moeparity.errors import Where
from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.images import KEYS, Images, laid_out
from moeparity.inputs.tokens.reader import read_tokens
from moeparity.inputs.tokens.tensorfile import file_contents
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.metrics.tokens import first_occurrences
from moeparity.numerics.bits import same_bits
from moeparity.plan.config import Config
from tests.command import ROOT
from tests.images import IMAGE, ONE, ROW, TWO, Sample, sample

FOLDER, FILE = ROOT / "checkpoints/pictures", ROOT / "recipes/pictures.safetensors"
HIDDEN, LAYERS = 4, 2
FIELDS: dict[str, Any] = {
    "model_type": "qwen3_vl_moe",
    "image_token_id": IMAGE,
    "spatial_merge_size": 2,
    "deepstack_layers": LAYERS,
    "hidden_size": HIDDEN,
}
LIVE: Any = SimpleNamespace(config=Qwen3VLMoeConfig())
ROPE_INDEX: Any = Qwen3VLMoeModel.get_rope_index
LIVE.get_vision_position_ids = partial(Qwen3VLMoeModel.get_vision_position_ids, LIVE)
VIDEO = (((2, (3, 4, 6), 1, (2, 2, 8)),),)
"""Images of several moments, as the formula has them."""


def drawn_images(of: Sample) -> Images:
    count = int((of.ids == IMAGE).sum())
    generator = torch.Generator().manual_seed(count)
    tensors = {
        "image_grid_thw": of.grids,
        "image_embeds": torch.randn(count, HIDDEN, generator=generator),
        "deepstack_embeds": torch.randn(LAYERS, count, HIDDEN, generator=generator),
    }
    return laid_out(tensors, of.ids, of.mask.bool(), FIELDS, Where(Path("tokens")))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("parts", [ONE, TWO, ROW, *VIDEO])
def test_positions_are_those_of_transformers(parts: Any, side: str) -> None:
    of = sample(parts, side)
    positions, moved = ROPE_INDEX(
        LIVE, of.ids, (of.ids == IMAGE).int(), image_grid_thw=of.grids, attention_mask=of.mask
    )
    images = drawn_images(of)
    counted = of.mask.cumsum(-1) - 1
    ours = (counted[..., None] + images.shifts).masked_fill(of.mask[..., None] == 0, 0)
    assert torch.equal(ours, positions.permute(1, 2, 0))
    width = of.ids.shape[1]
    behind = images.of_columns(width + 3)
    assert torch.equal(behind.shifts[:, -3:], moved[..., None].expand(-1, 3, 3)), "what is generated goes on from there"
    assert torch.equal(behind.mask, torch.nn.functional.pad(images.mask, (0, 3)))
    again = behind.of_columns(width)
    real = of.mask.bool()
    assert torch.equal(again.shifts[real], images.shifts[real])
    assert same_bits(again.embeds, images.embeds)


def test_embeddings_stand_at_their_tokens() -> None:
    of = sample(TWO)
    images = drawn_images(of)
    tensors = images.tensors()
    at = 0
    for row, column in (of.ids == IMAGE).nonzero().tolist():
        first, *further = images.embeds[row, column].split(HIDDEN)
        assert same_bits(first, tensors["image_embeds"][at])
        assert all(same_bits(part, tensors["deepstack_embeds"][i, at]) for i, part in enumerate(further))
        at += 1
    assert at == len(tensors["image_embeds"])
    assert not images.embeds[of.ids != IMAGE].any()


def test_rows_keep_their_own_images() -> None:
    images = drawn_images(sample(TWO))
    second = images.of_rows([1])
    assert second.grids == (images.grids[1],)
    assert torch.equal(second.tensors()["image_grid_thw"], torch.tensor(images.grids[1]))
    assert same_bits(second.embeds[0], images.embeds[1])


def test_images_are_told_apart_by_what_they_show() -> None:
    """A prefix cache must not take one image for another, and equal sequences count once: ids alone say too little."""
    of = sample((ROW[0], ROW[0], ROW[0]))
    ids = of.ids[:1].expand(3, -1).clone()
    images = drawn_images(Sample(ids, of.mask, of.pixels, of.grids))
    embeds = images.embeds[:1].expand(3, -1, -1).clone()
    embeds[2, int((ids[0] == IMAGE).nonzero()[1]), -1] += 1
    tokens = TokenSet(
        input_ids=ids, loss_mask=of.mask.bool(), attention_mask=of.mask.bool(), images=replace(images, embeds=embeds)
    )
    apart = tokens.told_apart
    assert torch.equal(apart[0], apart[1])
    assert (apart[0] != apart[2]).sum() == 1
    assert torch.equal(apart[ids != IMAGE], ids[ids != IMAGE])
    assert bool((apart[ids == IMAGE] < 0).all())
    assert first_occurrences(apart, tokens.loss_mask).tolist() == [0, 0, 2]
    grid = token_grid(tokens, with_ids=True).ids
    assert grid is not None
    assert grid[0] == grid[1] != grid[2]


def test_a_file_with_images_has_classes_and_reads_as_it_was_written(tmp_path: Path) -> None:
    tokens = read_tokens(FILE, checkpoint=FOLDER)
    image = Config(FOLDER / "config.json")["image_token_id"]
    assert tokens.images is not None
    assert tokens.label_names == ("text", "image")
    assert tokens.labels is not None
    assert torch.equal(tokens.labels == 1, tokens.input_ids == image)
    tensors, metadata = file_contents(tokens)
    assert {*KEYS} <= tensors.keys()
    save_file(tensors, tmp_path / "again.safetensors", metadata)
    again = read_tokens(tmp_path / "again.safetensors", checkpoint=FOLDER)
    assert again.images is not None
    assert same_bits(again.images.embeds, tokens.images.embeds)
    assert torch.equal(again.images.shifts, tokens.images.shifts)
    assert again.images.grids == tokens.images.grids


def test_classes_of_the_file_are_kept(tmp_path: Path) -> None:
    tensors, _ = file_contents(read_tokens(FILE, checkpoint=FOLDER))
    tensors["labels"] = torch.zeros_like(tensors["input_ids"])
    save_file(tensors, tmp_path / "own.safetensors", {"label_names": '["all"]'})
    assert read_tokens(tmp_path / "own.safetensors", checkpoint=FOLDER).label_names == ("all",)
