"""Whether vLLM 0.33.0 compiles a model: not with breakable CUDA graphs, which go by architecture and widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.plan.vllm_tiles import TUNED, shapes
from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings
from moeparity.profiles.launch.shared import EAGER

_SOURCE = "vLLM 0.33.0, vllm/config/vllm.py:70-110, 798-868 _maybe_enable_breakable_cudagraph"
_TABLE = f"{_SOURCE}; vllm/model_executor/determinism/batch_invariant_configs.py:103-298, the shapes of Hopper"
_BY_DEFAULT_NAMES = """
AliceAIForCausalLM BeamForCausalLM DeepseekV32MTPModel DeepseekV32ForCausalLM DeepseekV4ForCausalLM
DeepseekV4ForConditionalGeneration DeepSeekV4MTPModel DeepseekV41ForCausalLM Dots3NoteForCausalLM Dots3NoteMTPModel
Glm5NextForCausalLM Glm5NextForConditionalGeneration Glm5NextMTPModel GlmMoeDsaForCausalLM HYV4ForCausalLM HYV4MTPModel
InklingForCausalLM InklingForConditionalGeneration KimiK3ForConditionalGeneration KimiK3MTPModel KimiLinearForCausalLM
MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration MuseSpark1xForCausalLM
MuseSparkForConditionalGeneration Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration Qwen4ExpMTP Step5ForCausalLM
Step5ForConditionalGeneration
"""
_BY_DEFAULT = frozenset(_BY_DEFAULT_NAMES.split())


def vllm_breakable(settings: LaunchSettings) -> Iterator[Decision]:
    """Breakable CUDA graphs where the environment does not say: kernels in C in place of Inductor's."""
    variable = settings.values.get("VLLM_USE_BREAKABLE_CUDAGRAPH", "auto")
    config = settings["compilation_config"]
    mode = config.get("mode", config.get("level", "")) if isinstance(config, Mapping) else ""
    is_off = str(settings.values.get("optimization_level", "")) == "0" or str(mode).upper() in ("0", "NONE")
    if str(variable) != "auto" or settings["enforce_eager"] is True or is_off:
        return
    model = settings.model
    if model.architecture in _BY_DEFAULT:
        says = f"breakable CUDA graphs: the default for {model.architecture}. Nothing is compiled"
        yield _decided(says, _SOURCE)
    elif settings.values.get("VLLM_BATCH_INVARIANT") is True and not _quantised(settings):
        yield from _invariant(settings)


def _quantised(settings: LaunchSettings) -> bool:
    """Whether weights are quantised, as they are stored or when they are loaded."""
    return bool(settings.model.quantised) or any(map(settings.is_on, ("quantization", "quantization_config")))


def _invariant(settings: LaunchSettings) -> Iterator[Decision]:
    """What batch invariance makes of the model's widths, in bf16."""
    if str(settings.values.get("dtype", "auto")) not in ("auto", "bfloat16"):
        return
    widths, tensor = settings.model.widths, settings.ranks("tensor_parallel_size")
    if not widths:
        warns = (
            "with VLLM_BATCH_INVARIANT=1 vLLM compiles nothing (vllm-eager) where a weight has a shape of its table, "
            "and the model's widths are not known here. Give its config.json, or set VLLM_USE_BREAKABLE_CUDAGRAPH"
        )
        implied = Implied(says="compiled or not: by the model's widths", warns=warns)
        yield Decision(role="server", implied=implied, source=_TABLE)
        return
    tuned = [shape for shape in cut_shapes(widths, tensor) if shape in TUNED]
    if tuned:
        rows, columns = tuned[0]
        yield _decided(f"breakable CUDA graphs on Hopper: a weight is {rows} x {columns}. Nothing is compiled", _TABLE)
    else:
        implied = Implied(says="compiled: no weight has a shape of vLLM's table for Hopper")
        yield Decision(role="server", implied=implied, source=_TABLE)


def _decided(says: str, source: str) -> Decision:
    return Decision(role="server", implied=Implied(says=says, overlay=EAGER.overlay), source=source)


def cut_shapes(widths: Mapping[str, Any], tensor: int) -> list[tuple[int, int]]:
    """Rows and columns of the weights of qkv, o, gate_up and down on one of `tensor` ranks, for the fields of a
    config.json.

    Latent attention is counted as vLLM counts it: heads of the latent's width, and one head of keys.
    """
    hidden, heads = widths["hidden_size"], widths["num_attention_heads"]
    keys, width = widths.get("num_key_value_heads") or heads, widths.get("head_dim") or hidden // heads
    if widths.get("kv_lora_rank"):
        width, keys = widths["kv_lora_rank"] + widths.get("qk_rope_head_dim", 0), 1
    inner = widths.get("intermediate_size")
    inner = inner if isinstance(inner, int) else None
    return shapes(hidden=hidden, heads=heads, kv_heads=keys, head_dim=width, inner=inner, tensor=tensor)
