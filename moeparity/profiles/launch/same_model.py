"""Whether the model that a launch file names is plainly another one than the checkpoint it is read with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch.architecture import Model

_SIZES = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "num_experts", "n_routed_experts", "num_local_experts"),
    *("num_experts_per_tok", "n_shared_experts", "kv_lora_rank", "vocab_size"),
)
"""Fields of a config.json in which two models are of different sizes."""
_BILLIONS = re.compile(r"(?<![\w.])(?:(\d{1,9})x)?(\d{1,9}(?:\.\d{1,9})?)b(?![a-z0-9])")
_APART = 1.7
"""From this factor on a number of parameters is plainly not the one in a name, which is rounded."""


def difference(model_said: Model, checkpoint: Model) -> str:
    """How the named model differs from the checkpoint's: by class, by sizes, or by the size in its name. Empty if no
    difference is known.
    """
    if (
        None not in (model_said.architecture, checkpoint.architecture)
        and model_said.architecture != checkpoint.architecture
    ):
        return f"it is a {model_said.architecture}, and the checkpoint a {checkpoint.architecture}"
    for field in _SIZES if model_said.sizes else ():
        theirs, ours = model_said.sizes.get(field), checkpoint.sizes.get(field)
        if None not in (theirs, ours) and theirs != ours:
            return f"its {field} is {theirs}, and the checkpoint's {ours}"
    size, parameters = _named_size(model_said.name), _parameters(checkpoint.sizes)
    if size is not None and parameters is not None and not 1 / _APART < parameters / size < _APART:
        return f"by its name it has {size / 1e9:g} billion parameters, and the checkpoint about {parameters / 1e9:.2g}"
    return ""


def _named_size(name: str) -> float | None:
    """How many parameters a name says: the most of `1b-7b`, or the product in `8x7b`; None where it says nothing."""
    sizes = _BILLIONS.findall(name.rstrip("/").rpartition("/")[2].lower())
    return max((int(experts or 1) * float(billions) * 1e9 for experts, billions in sizes), default=None)


def _parameters(sizes: Mapping[str, Any]) -> float | None:
    """About how many parameters a model of these sizes has; None where some are missing."""
    names = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads")
    layers, hidden, vocabulary, heads = (sizes.get(name, 0) for name in names)
    experts = next((sizes[n] for n in ("num_experts", "n_routed_experts", "num_local_experts") if sizes.get(n)), 1)
    width = sizes.get("moe_intermediate_size" if experts != 1 else "intermediate_size", sizes.get("intermediate_size"))
    numbers = (layers, hidden, vocabulary, heads, experts, width)
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return None
    head = sizes.get("head_dim") or hidden // heads
    of_attention = 2 * hidden * head * (heads + (sizes.get("num_key_value_heads") or heads))
    return float(layers * (of_attention + 3 * experts * hidden * width) + 2 * vocabulary * hidden)
