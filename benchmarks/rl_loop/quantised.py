"""The sampler's weights rounded to the codes of a format, as a checkpoint and as weights of transformers' model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise


def quantised(folder: Path, out: Path, form: str) -> Path:
    """A copy of the checkpoint in `folder` with its layers' and experts' weights in a format, in place of `out`."""
    shutil.rmtree(out, ignore_errors=True)
    quantise(folder, FORMATS[form], out, 0)
    return out


def multiplied_out(folder: Path, like: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The checkpoint's weights in fp32, codes times scales, with the names and shapes of transformers' model `like`,
    which keeps the weights of all experts of a layer in one tensor.
    """
    source = Checkpoint(folder)
    experts = {name: name.rpartition(".")[0] for name in like if name.endswith(("gate_up_proj", "down_proj"))}
    weights = {name: source.tensor(name).float() for name in like if name not in experts}
    for name, module in experts.items():
        parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
        rows = [
            torch.cat([source.tensor(f"{module}.{expert}.{part}.weight").float() for part in parts])
            for expert in range(len(like[name]))
        ]
        weights[name] = torch.stack(rows)
    return weights
