"""Writes the safetensors file of every token, from which other programs, or a new page, can draw what the page
draws.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import torch

from moeparity.bisection.flips.census import MAP_BITS
from moeparity.bisection.report import Report
from moeparity.output.writing import write_tensors

SCHEMA = "moeparity.per-token/1"
"""Schema of the file. The number grows if a tensor changes its meaning or goes."""


def write_per_token(report: Report, path: Path) -> None:
    """Write each array of `PerToken` under its name; `input_ids`, which are text, only if `pieces` are given.

    Raises MoeparityError if the file cannot be written.
    """
    tokens = report.per_token
    assert tokens is not None, "every run looks at its tokens"
    left_out = {"pieces"} if tokens.pieces is not None else {"pieces", "input_ids"}
    names = [field.name for field in fields(tokens) if field.name not in left_out]
    tensors = {name: torch.from_numpy(getattr(tokens, name)).contiguous() for name in names}
    write_tensors(path, tensors, {"schema": SCHEMA, "bits": json.dumps(MAP_BITS)})
