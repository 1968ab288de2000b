"""Hugging Face transformers, run live: the truth the shipped `hf-*` profiles are held against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.checkpoint_factory import NO_AUTO_CLASS

ARGUMENTS: dict[str, dict[str, Any]] = {
    "hf-eager": {"attn_implementation": "eager", "experts_implementation": "eager"},
    "hf-default": {},
}
"""What a user passes to `from_pretrained` to get what the profile describes."""

ROUTERS = ("topkrouter", "tokenchoicerouter", "moev1gate", "llama4router", "dbrxexperts")
"""How the names of the classes end that give a layer's routes."""

Routes = list[tuple[Tensor, Tensor]]
"""Per MoE layer: expert ids and routing weights, both [tokens, top_k], in slot order."""

Truth = tuple[Tensor, Routes]
"""Logits [B, T, V] and the routes."""


@lru_cache(maxsize=4)
def load(folder: Path, profile: str, dtype: torch.dtype) -> PreTrainedModel:
    """The checkpoint as transformers loads it; those of the last profiles and dtypes are kept."""
    model_type = AutoConfig.from_pretrained(folder).model_type
    auto: Any = NO_AUTO_CLASS.get(model_type, AutoModelForCausalLM)
    model: PreTrainedModel = auto.from_pretrained(folder, dtype=dtype, **ARGUMENTS[profile])
    return model.eval()


def placed(folder: Path, profile: str, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """The model that `load` keeps, moved to the device."""
    model = load(folder, profile, dtype)
    nn.Module.to(model, device)
    return model


def reference(
    folder: Path,
    profile: str,
    dtype: torch.dtype,
    ids: Tensor,
    *,
    mask: Tensor | None = None,
    use_cache: bool = False,
    device: str = "cpu",
) -> Truth:
    """Logits [B, T, V] and routes of transformers' own forward over ids [B, T] with the attention mask [B, T].

    The model is loaded on the CPU and moved to the device; what it gives comes back.

    Without a key/value cache, as trainers score tokens: filling one copies keys and values into another layout, and
    eager attention in fp32 or fp16 without grouped queries then gives other bits.
    """
    model = placed(folder, profile, dtype, device)
    with routed(model) as routes, torch.no_grad():
        mask = None if mask is None else mask.to(device)
        logits: Tensor = model(ids.to(device), attention_mask=mask, use_cache=use_cache).logits.cpu()
    return logits, routes


@contextmanager
def routed(model: PreTrainedModel) -> Iterator[Routes]:
    """The routes of what a model computes meanwhile."""
    routes: Routes = []

    def keep(module: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        if type(module).__name__ == "Llama4Router":
            # It gives a score for each expert, 0 for those that are not chosen.
            scores, experts = output[0].topk(module.top_k, dim=-1)
            output = (output[1], scores, experts)
        if type(module).__name__ == "DbrxExperts":
            # No module gives DBRX's routes: its experts take them.
            output = (inputs[0], inputs[2], inputs[1])
        routes.append((output[2].cpu(), output[1].cpu()))

    routers = [module for module in model.modules() if type(module).__name__.lower().endswith(ROUTERS)]
    hooks = [router.register_forward_hook(keep) for router in routers]
    try:
        yield routes
    finally:
        for hook in hooks:
            hook.remove()
