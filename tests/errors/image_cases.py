"""Images that do not fit their tokens or their model, and tokens of images of which nothing else is said."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from moeparity.documents.checked import shipped
from moeparity.engine.grid import Grid
from moeparity.engine.inputs import Inputs
from moeparity.errors import Where
from moeparity.inputs.tokens import tensorfile
from moeparity.inputs.tokens.drafted import with_drafts
from moeparity.inputs.tokens.images import Images, laid_out, refuse_images
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.schedule.steps import Schedule, Span, Step
from moeparity.plan.spec.variant_schema import Placement

HERE = Where(Path("tokens.safetensors"))
FIELDS: dict[str, Any] = {
    "model_type": "qwen3_vl_moe",
    "image_token_id": 9,
    "video_token_id": 8,
    "spatial_merge_size": 2,
    "deepstack_layers": 1,
    "hidden_size": 4,
}
IDS = torch.tensor([[1, 9, 9, 2]])
GOOD = {
    "image_grid_thw": torch.tensor([[1, 2, 4]]),
    "image_embeds": torch.ones(2, 4),
    "deepstack_embeds": torch.ones(1, 2, 4),
}


def _laid_out(without: str = "", ids: torch.Tensor = IDS, fields: dict[str, Any] = FIELDS, **changed: Any) -> Images:
    tensors = {key: tensor for key, tensor in (GOOD | changed).items() if key != without}
    return laid_out(tensors, ids, ids > 0, fields, HERE)


def _refused(token: int) -> None:
    graph = expand(Config(shipped("configs", "json")["qwen3_vl_moe"]))
    refuse_images(None, torch.tensor([[1, 2], [token, 3]]), graph, HERE)


def _running() -> object:
    schedule = Schedule(steps=(Step(spans=(Span(0, 0, 4),)),), positions="running")
    inputs = Inputs(tokens=IDS, mask=IDS > 0, images=_laid_out())
    return inputs.source("grid_positions", Grid(1, 4, [schedule]), schedule)


def _drafted() -> object:
    tokens = TokenSet(input_ids=IDS, loss_mask=IDS > 0, attention_mask=IDS > 0, images=_laid_out())
    return with_drafts(tokens, "3:0.5", flat=True)


def _without_a_checkpoint() -> object:
    with tempfile.TemporaryDirectory() as folder, patch("moeparity.inputs.tokens.tensorfile.Where", lambda _: HERE):
        save_file({"input_ids": IDS, **GOOD}, Path(folder) / "tokens.safetensors")
        return tensorfile.read(Path(folder) / "tokens.safetensors")


def _staged() -> object:
    graph = expand(Config(shipped("configs", "json")["qwen3_vl_moe"]))
    return bind(graph, load_profile("hf-eager", HERE), "bf16", placement=placement_rules(Placement(pipeline=5), HERE))


CALLS: dict[str, Callable[[], object]] = {
    "python-images-for-a-model-of-text": lambda: _laid_out(fields={"model_type": "qwen3_moe"}),
    "python-images-without-grids": lambda: _laid_out("image_grid_thw"),
    "python-images-in-padding": lambda: laid_out(GOOD, IDS, IDS < 9, FIELDS, HERE),
    "python-images-of-two-axes": lambda: _laid_out(image_grid_thw=torch.tensor([[2, 4]])),
    "python-images-of-half-a-token": lambda: _laid_out(image_grid_thw=torch.tensor([[1, 2, 5]])),
    "python-images-of-more-runs": lambda: _laid_out(ids=torch.tensor([[9, 1, 9, 2]])),
    "python-images-of-more-patches": lambda: _laid_out(image_grid_thw=torch.tensor([[1, 4, 4]])),
    "python-images-of-another-width": lambda: _laid_out(image_embeds=torch.ones(2, 5)),
    "python-images-without-deepstack": lambda: _laid_out("deepstack_embeds"),
    "python-images-of-more-layers": lambda: _laid_out(deepstack_embeds=torch.ones(2, 2, 4)),
    "python-images-without-a-checkpoint": _without_a_checkpoint,
    "python-images-whose-positions-run-on": _running,
    "python-images-beside-drafts": _drafted,
    "python-stage-that-ends-with-images": _staged,
    "python-tokens-of-images-alone": lambda: _refused(151655),
    "python-tokens-of-videos": lambda: _refused(151656),
}
