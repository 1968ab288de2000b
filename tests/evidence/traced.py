"""A program captured and written down as the candidate of a recipe."""

from __future__ import annotations

import copy
import json
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from tests.evidence.recorded import recorded
from tests.hf.reference import load

SHAPE = (4, 9)


def tokens(shape: tuple[int, int] = SHAPE, *, seed: int = 1, below: int = 300) -> torch.Tensor:
    """Random ids [B, T] int64."""
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(seed))


def forward(program: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """The logits [B, T, V] of one forward as trainers score tokens."""
    with torch.no_grad():
        logits: torch.Tensor = program(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits


def generated(
    program: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, *, new: int = 4, **settings: Any
) -> torch.Tensor:
    """The ids [B, T + new] that `generate` makes of prompts, padded at the left where `mask` [B, T] is 0, greedily."""
    mask = torch.ones_like(ids) if mask is None else mask
    length = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        out: torch.Tensor = program.generate(ids, attention_mask=mask, **length, **settings)
    return out


def uneven(lengths: Sequence[int], *, at_left: bool = True, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids and the mask, int64, of sequences of these lengths with zeros at their left or their right."""
    ids = tokens((len(lengths), max(lengths)), seed=seed)
    columns, ends = torch.arange(ids.shape[1]), torch.tensor(lengths)[:, None]
    mask = (columns >= ids.shape[1] - ends if at_left else columns < ends).long()
    return ids * mask, mask


def captured(
    checkpoint: Path,
    trace: Path,
    ids: torch.Tensor,
    *,
    patch: Callable[[Any], object] | None = None,
    run: Callable[[Any, torch.Tensor], object] = forward,
    profile: str = "hf-eager",
    dtype: torch.dtype = torch.bfloat16,
    **settings: Any,
) -> Path:
    """A trace of transformers' own model over these ids; `patch` changes a copy of it before."""
    program = load(checkpoint, profile, dtype)
    if patch is not None:
        program = copy.deepcopy(program)
        patch(program)
    with recorded(trace, **settings):
        run(program, ids)
    return trace


def recipe(folder: Path, checkpoint: Path, ids: torch.Tensor, trace: Path, **further: Any) -> Path:
    """A recipe with the trace as its candidate, in the folder; `further` keys go on top."""
    lines = [json.dumps({"input_ids": row}) for row in ids.tolist()]
    (folder / "tokens.jsonl").write_text("\n".join(lines) + "\n")
    file = {
        "kind": "recipe",
        "checkpoint": str(checkpoint),
        "tokens": {"file": "tokens.jsonl", "sampled_from": "candidate"},
        "reference": {"profile": "hf-eager"},
        "candidate": {"trace": str(trace)},
        "gate": {"metric": "k3", "below": 1e-3},
        "floor": False,
        **further,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


def reported(folder: Path, checkpoint: Path, *, ids: torch.Tensor | None = None, **settings: Any) -> Report:
    """The report on a captured program."""
    ids = tokens() if ids is None else ids
    further = settings.pop("further", {})
    trace = captured(checkpoint, folder / "trace", ids, **settings)
    return bisect(recipe(folder, checkpoint, ids, trace, **further), device="cpu")


def padding_doubled(checkpoint: Path, folder: Path) -> tuple[torch.Tensor, torch.Tensor, Path]:
    """Ids and mask [2, 7] of a batch whose second sequence is short, and the trace of a program whose third layer gives
    twice as much at its pads, and nowhere else.
    """
    ids = tokens((2, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:], ids[1, 4:] = 0, 0

    def masked(program: Any, ids: torch.Tensor) -> None:
        with torch.no_grad():
            program(ids, attention_mask=mask, use_cache=False)

    def louder_pads(program: Any) -> None:
        layer = program.model.layers[2]
        unpatched = layer.forward
        layer.forward = types.MethodType(lambda _, *a, **k: unpatched(*a, **k) * (2 - mask[..., None]), layer)

    return ids, mask, captured(checkpoint, folder / "trace", ids, patch=louder_pads, run=masked)
