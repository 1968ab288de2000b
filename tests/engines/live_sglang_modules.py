"""SGLang 0.5.23's own models, built on the meta device: their modules' names. Run by `ask` in a process of its own.

Packages that their imports name and that are not here are left out; none is needed for a module's name.
"""

from __future__ import annotations

import copy
import importlib
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import import_utils

from tests.engines.absent import left_out
from tests.engines.live import answer

LEFT_OUT = ("torchvision", "einops", "sentencepiece", "compressed_tensors", "gguf", "vllm")
MODULES = {
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "OlmoeForCausalLM": "olmoe",
    "Glm4MoeForCausalLM": "glm4_moe",
    "DeepseekV3ForCausalLM": "deepseek_v2",
    "GptOssForCausalLM": "gpt_oss",
}
"""By the architecture's name, the file of SGLang that has it."""
ELSEWHERE = {"DeepseekV3ForCausalLM": {"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}}
"""Fields of a published config.json that transformers does not write."""


def _serve(folder: str) -> None:
    """What a scheduler does ahead of its model: settings, one rank, groups."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    args: Any = ServerArgs(
        model_path=folder,
        device="cpu",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        disable_cuda_graph=True,
    )
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0))
    place = f"file://{Path(folder).parent / 'rendezvous'}-{os.getpid()}"
    parallel_state.init_distributed_environment(1, 0, place, 0, "gloo")
    parallel_state.initialize_model_parallel(backend="gloo")
    initialize_dp_attention(args)


def names(folder: str) -> dict[str, Tensor]:
    """The paths of all modules of a checkpoint's model, as keys."""
    config = AutoConfig.from_pretrained(folder)
    (architecture,) = config.architectures
    for field, value in ELSEWHERE.get(architecture, {}).items():
        setattr(config, field, value)
    with left_out(*LEFT_OUT):
        if not torch.distributed.is_initialized():
            _serve(folder)
        kind = getattr(importlib.import_module(f"sglang.srt.models.{MODULES[architecture]}"), architecture)
        with torch.device("meta"):
            return {name or "model itself": torch.zeros(0) for name, _ in kind(config=config).named_modules()}


def loaded(folder: str, rank: int, ranks: int, expert: int, groups: int) -> dict[str, Tensor]:
    """The parameters that one of so many ranks has of a checkpoint, as SGLang's own loaders cut it: experts over
    `expert` ranks as wholes and over the rest, attention in `groups` that attend apart. No rank talks to another while
    it loads.
    """
    config = AutoConfig.from_pretrained(folder)
    (architecture,) = config.architectures
    with left_out(*LEFT_OUT):
        if not torch.distributed.is_initialized():
            _serve(folder)
        from sglang.srt.runtime_context import get_parallel

        kind = getattr(importlib.import_module(f"sglang.srt.models.{MODULES[architecture]}"), architecture)
        attention, each = ranks // groups, ranks // expert
        places = {
            "tp": (rank, ranks),
            "attn_tp": (rank % attention, attention),
            "attn_dp": (rank // attention, groups),
            "moe_ep": (rank // each, expert),
            "moe_tp": (rank % each, each),
        }
        fields: dict[str, Any] = {}
        for name, (place, size) in places.items():
            fields |= {f"{name}_size": size, f"{name}_rank": place}
            if name != "attn_dp":
                group = copy.copy(getattr(get_parallel(), f"{name}_group"))
                group.rank_in_group, group.world_size = place, size
                fields[f"{name}_group"] = group
        try:
            torch.set_default_dtype(torch.bfloat16)
            with get_parallel().override(**fields):
                model = kind(config=config)
                model.load_weights(iter(load_file(Path(folder) / "model.safetensors").items()))
        finally:
            torch.set_default_dtype(torch.float32)
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


if __name__ == "__main__":
    # transformers asks once whether it has torchvision: it has not, whatever is left out later.
    assert not import_utils.is_torchvision_available()
    answer({"names": names, "loaded": loaded})
