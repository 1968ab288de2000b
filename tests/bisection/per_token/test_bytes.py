"""What is kept of each token is counted in the estimate of a pass, and what is kept lies below that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from moeparity.bisection.observe import bytes_per_token, observe
from moeparity.bisection.prepare import prepare
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

CHOICE = {"set": {"layers[*].moe.gate:output": "fp16"}}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what is kept."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def test_what_is_kept_of_each_token_is_counted(tmp_path: Path, qwen3_moe: Path) -> None:
    recipe = write_recipe(tmp_path, qwen3_moe, {"input_ids": random_tokens(6, 50)}, {}, CHOICE)
    study = prepare(recipe, device="cpu", opener=opened)
    observed = observe(study, [])
    sections = [observed.sections["flips"], observed.sections["per_token"]]
    size = sum(tensor.nbytes for tensor in tensors(sections) if tensor.numel() >= 6 * 50)
    most = bytes_per_token(study) * 6 * 50
    layers = sum(node.op.role.routes for node in study.model.graph.nodes)
    # The maps of all layers, and five numbers of each token, are there whatever flips.
    assert 6 * 50 * (9 * layers + 20) <= size <= most
    later = observe(study, [], first=False)
    assert observed.cost.memory.estimated - later.cost.memory.estimated >= most


def test_a_dense_model_keeps_its_metrics_alone(tmp_path: Path, qwen3: Path) -> None:
    choice = {"set": {"layers[*].attention.o_proj:output": "fp16"}}
    recipe = write_recipe(tmp_path, qwen3, {"input_ids": random_tokens(2, 9) % 300}, {}, choice)
    assert bytes_per_token(prepare(recipe, device="cpu", opener=opened)) == 20
