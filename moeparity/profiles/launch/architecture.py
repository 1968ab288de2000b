"""Which architecture a launch configuration runs: by a config.json that is here, else by its name on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that is launched: the class its config.json names, and how that is known.

    `architecture` is None where it is not; `known_by` then says why. `quantised` names a quantisation of the weights as
    they are stored, empty where none is known. `sizes` are the fields of a config.json that is here.
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


def model_of(name: str | None, beside: Path) -> Model:
    """The model of that name: a folder or config.json (relative to `beside`, or to here), else a name on the hub."""
    if not name or "$" in name:
        reason = f"{name} is not resolved" if name else "the launch configuration names no model"
        return Model(name=name or "", architecture=None, known_by=reason)
    for base in (beside, Path()):
        folder = base / Path(name).expanduser()
        config = folder if folder.name == "config.json" else folder / "config.json"
        if paths.is_file(config):
            return of_config(config, name)
    word = name.rstrip("/").rpartition("/")[2].lower()
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
