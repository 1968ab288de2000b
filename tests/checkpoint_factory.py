"""Makes checkpoints of random weights: small ones through transformers, a wide one written straight to its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.small_models import SMALL

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

NO_AUTO_CLASS: dict[str, Any] = {
    "mistral4": transformers.Mistral4ForCausalLM,
    "qwen3_vl_moe": transformers.Qwen3VLMoeForConditionalGeneration,
    "glm4v_moe": transformers.Glm4vMoeForConditionalGeneration,
    "kimi_k25": transformers.Kimi_K25ForConditionalGeneration,
}
"""model_type -> the model that transformers has, and does not list for AutoModelForCausalLM."""
FILE = "model.safetensors"
_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


def make_small(name: str, folder: Path, max_shard_size: str = "50GB") -> Path:
    """A bf16 checkpoint saved by transformers itself; the same name gives the same weights."""
    return make_random(SMALL[name], folder, max_shard_size)


def make_random(fields: Mapping[str, Any], folder: Path, max_shard_size: str = "50GB", unlisted: Any = None) -> Path:
    """The same for the fields of a config.json. unlisted: the model's class, if it is none of a language model."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**fields)
    model: Any
    if "num_labels" in fields:
        model = AutoModelForSequenceClassification.from_config(config)
    elif (own_class := unlisted or NO_AUTO_CLASS.get(fields["model_type"])) is not None:
        model = own_class(config)
    else:
        model = AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16)
    # Tables that are made of config.json stay as they are.
    tables = ("inv_freq", "slope_rate", "_decay")
    tensors = dict(model.named_parameters()) | {
        n: b for n, b in model.named_buffers() if not any(m in n for m in tables)
    }
    with torch.no_grad():
        for key, tensor in tensors.items():
            if "e_score_correction_bias" in key:
                tensor.data = torch.empty(tensor.shape, dtype=torch.float32)
            is_bias, is_norm = "bias" in key, tensor.dim() == 1
            mean, std = (0.0, 0.1) if is_bias else (1.0, 0.1) if is_norm else (0.0, tensor.shape[-1] ** -0.5)
            # So that some reach gpt-oss's limit.
            std = 4.0 if "gate_up_proj_bias" in key else std
            # So that states remember hundreds of tokens in some heads, and few in others.
            mean, std = (-3.0, 2.0) if "A_log" in key else (mean, std)
            tensor.normal_(mean, std)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def make_fp32(source: Path, folder: Path, lead: int) -> Path:
    """The checkpoint `source` as one fp32 file whose tensors all lie shifted by `lead` bytes modulo 64."""
    tensors = load_file(source / FILE)
    config = json.loads((source / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}), "utf-8")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    write_safetensors(folder / FILE, shapes, torch.float32, lambda name: tensors[name].float(), lead)
    return folder


WIDE_CHOSEN = 8
WIDE_LAYERS, WIDE_EXPERTS, WIDE_HIDDEN, WIDE_EXPERT_WIDTH, WIDE_VOCAB = 2, 16, 2048, 768, 512


def make_wide(folder: Path, layers: int = WIDE_LAYERS, experts: int = WIDE_EXPERTS) -> Path:
    """Layers as wide as Qwen3-30B-A3B's, with some of its 128 experts, of which 8 are chosen, or half of fewer; bf16.

    Two layers with 16 experts, which is usual, are 0.4 GB, with 128 they are 2.5 GB.
    """
    config = {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": WIDE_HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": experts,
        "num_experts_per_tok": min(WIDE_CHOSEN, experts // 2),
        "moe_intermediate_size": WIDE_EXPERT_WIDTH,
        "intermediate_size": 6144,
        "norm_topk_prob": True,
        "vocab_size": WIDE_VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    torch.manual_seed(0)
    shapes = _wide_shapes(layers, experts)
    write_safetensors(folder / FILE, shapes, torch.bfloat16, lambda name: _random(shapes[name]), lead=0)
    return folder


def _wide_shapes(layers: int, experts: int) -> dict[str, tuple[int, ...]]:
    hidden, width = WIDE_HIDDEN, WIDE_EXPERT_WIDTH
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (WIDE_VOCAB, hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (hidden,), at + "post_attention_layernorm.weight": (hidden,)}
        for projection, rows in (("q", 4096), ("k", 512), ("v", 512)):
            shapes[f"{at}self_attn.{projection}_proj.weight"] = (rows, hidden)
        shapes |= {at + "self_attn.o_proj.weight": (hidden, 4096), at + "mlp.gate.weight": (experts, hidden)}
        shapes |= {at + "self_attn.q_norm.weight": (128,), at + "self_attn.k_norm.weight": (128,)}
        for expert in range(experts):
            expert_path = f"{at}mlp.experts.{expert}."
            shapes |= {
                expert_path + "gate_proj.weight": (width, hidden),
                expert_path + "up_proj.weight": (width, hidden),
            }
            shapes[expert_path + "down_proj.weight"] = (hidden, width)
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (WIDE_VOCAB, hidden)}


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    mean, std = (1.0, 0.1) if len(shape) == 1 else (0.0, shape[-1] ** -0.5)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(mean, std)


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    tensor: Callable[[str], torch.Tensor],
    lead: int,
) -> None:
    """One safetensors file, tensor by tensor in the order of `shapes`; the data begins at `lead` modulo 64."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * ((lead - 8 - len(text)) % 64)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            file.write(tensor(name).contiguous().view(torch.uint8).numpy().data)
