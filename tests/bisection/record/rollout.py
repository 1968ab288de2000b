"""Rollouts with a record: tokens, what an engine would have recorded of them, and a recipe that is held to it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from moeparity.bisection.options import Options
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.engine.forward import forward

SEQUENCES, WIDTH, PROMPT = 30, 10, 3
MICRO_BATCH = 15
IDS = torch.randint(0, 512, (SEQUENCES, WIDTH), generator=torch.Generator().manual_seed(5))
MASK = torch.ones_like(IDS).index_fill_(1, torch.arange(PROMPT), 0)
PROFILE = "hf-eager"
REFERENCE = {"layers[*].moe.gate:output": "fp32"}
"""What the reference sets otherwise than the candidate."""
PASSED = "{metric: k3, below: 1}"
"""A gate that the two simulations pass."""


def engine(
    folder: Path,
    *,
    settings: Mapping[str, str] | None = None,
    temperature: float = 1.0,
    attention_mask: Tensor | None = None,
) -> dict[str, Tensor]:
    """What an engine with these settings records: log-probabilities of all tokens, NaN for the first, and routes."""
    out = forward(
        folder,
        IDS,
        profile=PROFILE,
        settings=settings,
        micro_batch=MICRO_BATCH,
        device="cpu",
        attention_mask=attention_mask,
    )
    rows = (out["logits"].double() / temperature).log_softmax(-1)
    logprobs = torch.full(IDS.shape, math.nan, dtype=torch.float64)
    logprobs[:, 1:] = rows[:, :-1].gather(-1, IDS[:, 1:, None]).squeeze(-1)
    routes = torch.stack([out[f"layers.{i}.router.ids"].view(*IDS.shape, -1) for i in range(3)], dim=2)
    return {"logprobs": logprobs, "routed_experts": routes}


@dataclass(frozen=True)
class Rollout:
    """A folder that recipes of one checkpoint are written to."""

    checkpoint: Path
    folder: Path

    def recipe(
        self,
        tensors: Mapping[str, Tensor] | None = None,
        *,
        gate: str = PASSED,
        expect: str = "",
        sampled_from: str = "candidate",
        micro_batch: int = MICRO_BATCH,
        **settings: Mapping[str, float],
    ) -> Path:
        """A recipe of these tokens, whose gate the two simulations pass; `settings` by side, the `micro_batch` of the
        candidate.
        """
        contents = {"input_ids": IDS, "loss_mask": MASK, **(tensors or {})}
        save_file({name: tensor.contiguous() for name, tensor in contents.items()}, self.folder / "tokens.safetensors")
        path = self.folder / "recipe.yaml"
        reference, candidate = (
            {**side_settings, **settings.get(side, {})}
            for side, side_settings in (("reference", REFERENCE), ("candidate", {}))
        )
        path.write_text(
            f"kind: recipe\ncheckpoint: {self.checkpoint}\n"
            f"tokens: {{file: tokens.safetensors, sampled_from: {sampled_from}}}\n"
            f"reference: {{profile: {PROFILE}, micro_batch: {MICRO_BATCH}, set: {json.dumps(reference)}}}\n"
            f"candidate: {{profile: {PROFILE}, micro_batch: {micro_batch}, set: {json.dumps(candidate)}}}\n"
            f"gate: {gate}\n" + (f"expect: {expect}\n" if expect else ""),
            "utf-8",
        )
        return path

    def run(self, tensors: Mapping[str, Tensor] | None = None, **recipe: Any) -> Report:
        """Its report without toggles, which no record changes."""
        path = self.recipe(tensors, **recipe)
        return bisect(path, device="cpu", options=Options(attribution=False))
