"""Graphs of tiny configs, for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moeparity.errors import Where
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.spec import reader
from tests.errors.base import CONFIG as QWEN3_MOE

QWEN3 = {**QWEN3_MOE, "model_type": "qwen3", "intermediate_size": 24, "tie_word_embeddings": True}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 2,
    "q_lora_rank": 6,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "intermediate_size": 24,
    "routed_scaling_factor": 2.5,
    "vocab_size": 32,
    "torch_dtype": "bfloat16",
}
LLAMA = {**QWEN3, "model_type": "llama", "tie_word_embeddings": False}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN2_MOE = {**QWEN3_MOE, "model_type": "qwen2_moe", "intermediate_size": 24, "shared_expert_intermediate_size": 10}
MIXTRAL = {**QWEN3_MOE, "model_type": "mixtral", "intermediate_size": 24}
OLMOE = {**MIXTRAL, "model_type": "olmoe"}
GLM4_MOE = {
    **{key: value for key, value in DEEPSEEK_V3.items() if "lora" not in key and "qk_" not in key},
    "model_type": "glm4_moe",
    "num_key_value_heads": 1,
    "head_dim": 8,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
}
GPT_OSS = {
    **{key: value for key, value in MIXTRAL.items() if key not in {"norm_topk_prob", "rope_theta"}},
    "model_type": "gpt_oss",
}
__all__ = [
    "DEEPSEEK_V3",
    "GLM4_MOE",
    "GPT_OSS",
    "LLAMA",
    "MIXTRAL",
    "OLMOE",
    "QWEN2",
    "QWEN2_MOE",
    "QWEN3",
    "QWEN3_MOE",
]


def config(folder: Path, fields: dict[str, Any], **changes: Any) -> Config:
    """A config.json with fields changed, read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**fields, **changes}), "utf-8")
    return Config(folder / "config.json")


def graph(folder: Path, fields: dict[str, Any], **changes: Any) -> Graph:
    """The shipped graph of a config."""
    return expand(config(folder, fields, **changes))


def bound(
    of: Graph,
    folder: Path,
    rules: str,
    *,
    choices: str = "{}",
    dtype: str = "bf16",
    name: str = "mine",
    phases: tuple[Case, ...] = (FORWARD,),
) -> Plan:
    """A graph bound to a profile of these rules (YAML from line 4 on), with a recipe's `set` (YAML in one line)."""
    path = folder / f"{name}.yaml"
    path.write_text(f"kind: profile\nname: {name}\n{rules}", "utf-8")
    recipe = folder / f"{name}-recipe.yaml"
    side = "{profile: hf-eager}"
    recipe.write_text(
        f"kind: recipe\ncheckpoint: x\ntokens: {{file: x, sampled_from: candidate}}\nreference: {side}\n"
        f"candidate:\n  profile: hf-eager\n  set:\n    {choices}\ngate: {{metric: k3, below: 1}}\n",
        "utf-8",
    )
    settings = reader.read_recipe(recipe).candidate.set
    profile = load_profile(f"./{path.name}", Where(recipe))
    return bind(of, profile, dtype, overrides(settings, Where(recipe, 6)), phases=phases)
