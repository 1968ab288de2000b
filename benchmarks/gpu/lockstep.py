"""Many variants in one pass on this device, against as many forwards and against transformers' forward."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import lockstep
from benchmarks.gpu.budget import Budget
from benchmarks.turns import settle
from moeparity.inputs.model import Model, open_model
from moeparity.ops.attribute import Value
from tests.checkpoint_factory import make_small
from tests.hf.reference import placed

REPEATS = 3

SETTINGS: Mapping[str, Sequence[dict[str, Value]]] = {
    "one late layer each": lockstep.LATE,
    "from layer 0 on": lockstep.EARLY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting: its variants, the best seconds of a lockstep pass and of separate forwards, kernel calls.

    `evaluations` were made; `naive` would be made of separate forwards; `ideal` as the graph alone allows.
    """

    setting: str
    variants: int
    lockstep: float
    separate: float
    evaluations: int
    naive: int
    ideal: int


def measure(device: torch.device, budget: Budget, tiny: bool) -> dict[str, Any]:
    """A row for each setting, transformers' seconds, and the bytes read in a pass against those of the file."""
    rows, not_run = [], []
    repeats = 1 if tiny else REPEATS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if tiny:
            make_small("qwen3_moe", folder)
        else:
            lockstep.write_checkpoint(folder)
        model = open_model(folder, device=device.type, residency="resident")
        theirs = transformers_seconds(folder, model, repeats)
        for setting, trials in SETTINGS.items():
            if budget.spent:
                not_run.append(setting)
                continue
            variants = lockstep.walkers(model, trials)
            measured = lockstep.measure(model, variants, repeats)
            rows.append(
                Row(
                    setting=setting,
                    variants=len(variants),
                    lockstep=measured.lockstep,
                    separate=measured.separate,
                    evaluations=measured.evaluations,
                    naive=measured.naive,
                    ideal=measured.ideal,
                )
            )
        return {
            "layers": model.graph.layers,
            "hidden": model.graph.config["hidden_size"],
            "tokens": [lockstep.SEQUENCES, lockstep.TOKENS],
            "repeats": repeats,
            "transformers": theirs,
            "rows": rows,
            "not_run": not_run,
        }


def transformers_seconds(folder: Path, model: Model, repeats: int) -> float:
    """The best seconds of transformers' own forward on the same tokens, eager as the reference is."""
    theirs = placed(folder, "hf-eager", torch.bfloat16, model.device.type)
    ids = lockstep.tokens(model.vocab_size).to(model.device)

    def once() -> float:
        settle(model.device)
        started = time.perf_counter()
        with torch.inference_mode():
            theirs(ids, use_cache=False)
        settle(model.device)
        return time.perf_counter() - started

    once()
    return min(once() for _ in range(repeats))
