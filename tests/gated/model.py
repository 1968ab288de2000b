"""A small model of gated delta nets alone, with weights from a seed: nobody trains it."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path

import torch

from moeparity.inputs.model import Model
from moeparity.inputs.weights.store import WeightStore
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.plan.config import Config
from moeparity.plan.expand import expand

GRAPH = "graph.yaml"
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, TAPS = 2, 4, 24, 16, 4
FIELDS = {
    "model_type": "gated",
    "architectures": ["Gated"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "key_heads": KEY_HEADS,
    "value_heads": VALUE_HEADS,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
    "qkv_width": 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM,
    "taps": TAPS,
    "initializer_range": 0.2,
}


def written(folder: Path, dtype: str = "bfloat16") -> Path:
    """The folder, with a config.json and the graph in it."""
    shutil.copy(Path(__file__).parent / "gated.yaml", folder / GRAPH)
    (folder / "config.json").write_text(json.dumps({**FIELDS, "torch_dtype": dtype}), "utf-8")
    return folder


@lru_cache(maxsize=4)
def opened_gated(folder: Path) -> Model:
    """The model of a folder that `written` wrote."""
    config = Config(folder / "config.json")
    graph = expand(config, folder / GRAPH)
    weights = WeightStore(Synthetic(config, graph, 0), graph, torch.device("cpu"), "resident")
    return Model(folder=folder, graph=graph, dtype=config.dtype or "", weights=weights, vocab_size=512)
