"""The truths in moeparity's own format, in each of its containers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.logs.truth import STEP, TRUTHS


def records() -> list[dict[str, Any]]:
    """One mapping per sequence, as a line of JSON holds it."""
    return [
        {
            "id": f"s{number}",
            "input_ids": truth.ids,
            "mask": [int(in_mask) for in_mask in truth.mask],
            "logprobs": [None if math.isnan(value) else value for value in truth.rollout],
            "trainer_logprobs": [None if math.isnan(value) else value for value in truth.trainer],
            "prompt_tokens": truth.prompt,
            "step": STEP,
            "versions": truth.versions,
            "trainer_version": 7,
            "labels": "maths",
            "sampling_params": {"temperature": 1.0, "top_p": 1.0, "logprobs_mode": "raw"},
        }
        for number, truth in enumerate(TRUTHS)
    ]


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records()))


def write_parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(records()), path, row_group_size=2)


def tensors() -> dict[str, torch.Tensor]:
    width = max(len(truth.ids) for truth in TRUTHS)

    def block(key: str, fill: Any) -> torch.Tensor:
        return torch.tensor([[*getattr(t, key), *[fill] * (width - len(t.ids))] for t in TRUTHS])

    return {
        "input_ids": block("ids", 0),
        "attention_mask": torch.tensor([[at < len(t.ids) for at in range(width)] for t in TRUTHS]),
        "loss_mask": block("mask", False),
        "logprobs": block("rollout", math.nan),
        "trainer_logprobs": block("trainer", math.nan),
        "versions": block("versions", -1),
        "step": torch.full((len(TRUTHS),), STEP),
        "prompt_tokens": torch.tensor([truth.prompt for truth in TRUTHS]),
        "trainer_version": torch.full((len(TRUTHS),), 7),
    }


def write_safetensors(path: Path) -> None:
    names = [record["id"] for record in records()]
    parameters = records()[0]["sampling_params"]
    metadata = {"ids": names, "labels": ["maths"] * len(names), "sampling_params": parameters}
    save_file(tensors(), str(path), {key: json.dumps(value) for key, value in metadata.items()})
