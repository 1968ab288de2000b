"""Which architecture a launch configuration runs: by a config.json that is here, else by its name on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moeparity import paths

_HUB = (
    (r"qwen3-vl-.*-a\d+b", "Qwen3VLMoeForConditionalGeneration"),
    (r"qwen3-next", "Qwen3NextForCausalLM"),
    (r"qwen3\.5-.*-a\d+b", "Qwen3_5MoeForConditionalGeneration"),
    (r"qwen3\.5-", "Qwen3_5ForConditionalGeneration"),
    (r"qwen3-(coder-)?\d+b-a\d+b", "Qwen3MoeForCausalLM"),
    (r"qwen3-[\d.]+b", "Qwen3ForCausalLM"),
    (r"qwen1\.5-moe|qwen2-57b-a14b", "Qwen2MoeForCausalLM"),
    (r"qwen2(\.5)?-(coder-|math-)?[\d.]+b", "Qwen2ForCausalLM"),
    (r"deepseek-v4", "DeepseekV4ForCausalLM"),
    (r"deepseek-v3\.2", "DeepseekV32ForCausalLM"),
    (r"deepseek-r1-distill-qwen", "Qwen2ForCausalLM"),
    (r"deepseek-r1-distill-llama", "LlamaForCausalLM"),
    (r"deepseek-(v3|r1)", "DeepseekV3ForCausalLM"),
    (r"moonlight-16b-a3b|kimi-k2-", "DeepseekV3ForCausalLM"),
    (r"glm-4\.7-flash", "Glm4MoeLiteForCausalLM"),
    (r"glm-4\.[567]", "Glm4MoeForCausalLM"),
    (r"gpt-oss-\d+b", "GptOssForCausalLM"),
    (r"mixtral-8x", "MixtralForCausalLM"),
    (r"olmoe-", "OlmoeForCausalLM"),
    (r"llama-3", "LlamaForCausalLM"),
)
"""Names on the hub, in lower case, and the class that their config.json names; the first that occurs holds."""

_QUANTISED = re.compile(r"fp8|mxfp[48]|nvfp4|fp4|int[48]|w\d+a\d+|awq|gptq|gguf|bnb|quantized")
_QUANTISED_ON_THE_HUB = {
    "gpt-oss": "MXFP4",
    "deepseek-v3": "fp8",
    "deepseek-r1": "fp8",
    "deepseek-v4": "fp8 and fp4",
    "kimi-k2": "fp8 or int4",
}
_UNQUANTISED = re.compile(r"bf16|base-hf|distill|v3\.2-exp-bf16")
_TYPES = {
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "llama": "LlamaForCausalLM",
}
"""Of a config.json without `architectures`."""

_DENSE = frozenset({"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "Qwen3_5ForConditionalGeneration"})


_FIELDS = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("kv_lora_rank", "qk_rope_head_dim"),
)
_WIDTHS = {
    "qwen3-30b-a3b": (2048, 32, 4, 128, 6144, 0, 0),
    "qwen3-coder-30b-a3b": (2048, 32, 4, 128, 6144, 0, 0),
    "qwen3-235b-a22b": (4096, 64, 4, 128, 12288, 0, 0),
    "qwen3-8b": (4096, 32, 8, 128, 12288, 0, 0),
    "llama-3.1-8b": (4096, 32, 8, 128, 14336, 0, 0),
    "mixtral-8x7b": (4096, 32, 8, 128, 14336, 0, 0),
    "olmoe-1b-7b": (2048, 16, 16, 128, 1024, 0, 0),
    "deepseek-v3": (7168, 128, 128, 0, 18432, 512, 64),
    "deepseek-r1-0528": (7168, 128, 128, 0, 18432, 512, 64),
}
"""Fields of the config.json of models that people launch, by a part of their names."""

QUANTISED, LATENT, STATE, GROUPED = "quantised", "latent", "state", "grouped"
_PLAIN_NAMES = """
Qwen3MoeForCausalLM Qwen3ForCausalLM Qwen2MoeForCausalLM Qwen2ForCausalLM MixtralForCausalLM OlmoeForCausalLM
LlamaForCausalLM GptOssForCausalLM Glm4MoeForCausalLM
"""
_PLAIN = frozenset(_PLAIN_NAMES.split())
_LACKS = {
    LATENT: (_PLAIN, "has no latent attention"),
    STATE: (_PLAIN, "has no linear attention and no Mamba"),
    GROUPED: (_PLAIN - {"Glm4MoeForCausalLM"}, "chooses experts in no groups"),
}
"""By what an option concerns: the classes that are known to have none of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that is launched: the class that its config.json names, and how that is known.

    `architecture` is None if the class is not known; `known_by` then says why. `quantised` names a quantisation of the
    stored weights, empty if none is known. `sizes` are the fields of a config.json on this machine.
    """

    name: str
    architecture: str | None
    known_by: str
    quantised: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_dense(self) -> bool | None:
        """Whether it has no experts; None where its architecture is not known."""
        return None if self.architecture is None else self.architecture in _DENSE

    @property
    def widths(self) -> Mapping[str, Any]:
        """Fields of its config.json that say how wide its weights are; empty where they are not known."""
        if self.sizes:
            return self.sizes if {"hidden_size", "num_attention_heads"} <= {*self.sizes} else {}
        word = _last_part(self.name).lower()
        return next((dict(zip(_FIELDS, sizes, strict=True)) for part, sizes in _WIDTHS.items() if part in word), {})

    @property
    def rotary_base(self) -> float | None:
        """The base of its rotary embedding's angles, as its config.json has it; None where that is not known."""
        parts = (self.sizes, self.sizes.get("text_config"))
        for part in (part for part in parts if isinstance(part, Mapping)):
            scaled = part.get("rope_parameters")
            base = scaled.get("rope_theta") if isinstance(scaled, Mapping) else part.get("rope_theta")
            if isinstance(base, int | float):
                return float(base)
        return None

    def lacks(self, concern: str) -> str:
        """Why what concerns only such models has no effect on this one; empty where it may have one."""
        if self.architecture is None:
            return ""
        if concern == QUANTISED:
            return "" if self.quantised else "the weights are not quantised"
        classes, says = _LACKS[concern]
        return f"{self.architecture} {says}" if self.architecture in classes else ""


def _last_part(path: str) -> str:
    """The name of a model at the end of a path; of the hub's cache it stands before `snapshots`."""
    of_cache = re.search(r"models--[\w.-]+?--([\w.-]+)/snapshots", path)
    return of_cache[1] if of_cache else path.rstrip("/").rpartition("/")[2]


def of_last_part(path: str) -> Model:
    """The model of a path whose beginning is not resolved: its last part may be a name on the hub."""
    last = _last_part(path)
    if not last or any(mark in last for mark in "$`"):
        return Model(name="", architecture=None, known_by=f"its name is unresolved: {path}")
    model = model_of(last, Path("/nowhere"))
    known_by = f"the last part of {path}" if model.architecture else f"{path} is not resolved: {model.known_by}"
    return replace(model, name=path, known_by=known_by)


def model_of(name: str | None, beside: Path) -> Model:
    """The model of that name: a folder or config.json (relative to `beside`, or to here), else a name on the hub."""
    if not name:
        return Model(name="", architecture=None, known_by="the launch configuration names no model")
    if "$" in name:
        return of_last_part(name)
    for base in (beside, Path()):
        folder = base / Path(name).expanduser()
        config = folder if folder.name == "config.json" else folder / "config.json"
        if paths.is_file(config):
            return of_config(config, name)
    word = _last_part(name).lower()
    quantised = _stored(word)
    for pattern, architecture in _HUB:
        if re.search(pattern, word):
            return Model(
                name=name, architecture=architecture, known_by="its name; no config.json is here", quantised=quantised
            )
    known_by = "no config.json is here, and its name is none known here"
    return Model(name=name, architecture=None, known_by=known_by, quantised=quantised)


def of_config(config: Path, name: str) -> Model:
    """The model of a config.json; one that can't be read makes it unknown, and says why."""
    try:
        fields = json.loads(paths.contents(config, "config.json").decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return Model(name=name, architecture=None, known_by=f"{config} is no JSON object")
    listed = fields.get("architectures")
    architecture = listed[0] if isinstance(listed, list) and listed else _TYPES.get(str(fields.get("model_type")))
    quantisation = fields.get("quantization_config")
    method = str(quantisation.get("quant_method", "some method")) if isinstance(quantisation, dict) else ""
    known_by = str(config) if architecture else f"{config} names no class known here"
    return Model(
        name=name,
        architecture=str(architecture) if architecture else None,
        known_by=known_by,
        quantised=method,
        sizes=fields,
    )


def _stored(word: str) -> str:
    """How the weights behind a name on the hub are quantised, as far as the name says."""
    marked = _QUANTISED.search(word)
    if marked:
        return marked[0]
    if _UNQUANTISED.search(word):
        return ""
    return next((method for part, method in _QUANTISED_ON_THE_HUB.items() if part in word), "")
