"""What a single value of an option of vLLM 0.33.0 or SGLang 0.5.23 implies, where that takes more than a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch.options import Implied, Option
from moeparity.profiles.launch.shared import COMPILED, EAGER, fp32_head


def optimised(value: Any) -> Implied:
    """vLLM's optimization level: at 0 nothing is compiled."""
    return EAGER if str(value) == "0" else COMPILED


def overrides(value: Any) -> Implied:
    """What vLLM's hf_overrides say of the head."""
    overrides = value if isinstance(value, Mapping) else {}
    others = sorted(str(name) for name in overrides if name != "head_dtype")
    warns = f"{', '.join(others)}: fields of config.json are replaced" if others else ""
    if overrides.get("head_dtype") in ("float32", "float"):
        return replace(fp32_head("vllm-fp32-head"), warns=warns)
    return Implied(says="logits in the model's dtype", warns=warns)


def replicas(value: Any) -> Implied:
    """Over how many replicas vLLM's requests are shared out."""
    return Implied(says="one replica" if value == 1 else f"{value} replicas of attention; experts lie on all of them")


_FP8_KEYS = Implied(
    says="keys and values in fp8_e4m3",
    warns="queries, and what meets the values, are rounded to 8 bits too by some attention backends",
)


def cache_dtype(overlay: str, fp8: Sequence[str]) -> Option:
    """In which dtype a server stores keys and values; of those that are not the model's one has a profile, fp8_e4m3."""
    says = "keys and values are stored in this dtype and read back from it"

    def implies(value: Any) -> Implied:
        if value in fp8:
            return replace(_FP8_KEYS, overlay=overlay)
        as_model = value in ("auto", "bfloat16", "float16", "bf16")
        return Implied(says="keys and values in 16 bits" if as_model else says, warns="" if as_model else says)

    return Option(names=("kv_cache_dtype",), kind="word", default="auto", implies=implies, quiet=True)


def quantization(profiles: Mapping[str, str]) -> Option:
    """How a server quantises weights when it loads them; `profiles` has the overlays of some ways."""
    says = "weights, and activations where the method says so, are quantised: other values, kernels and scales"

    def implies(value: Any) -> Implied:
        if value in profiles:
            return Implied(says="weights and activations in fp8", overlay=profiles[value])
        return Implied(says="as the checkpoint has them" if value == "none" else says, warns=says * (value != "none"))

    return Option(names=("quantization", "q"), kind="word", default="none", implies=implies, quiet=True, null="none")


def nodes(value: Any) -> Implied:
    """On how many nodes a server runs."""
    return Implied(says="one node" if value == 1 else f"{value} nodes")


def breakable(value: Any) -> Implied:
    """CUDA graphs that are broken up while they are captured: with them vLLM compiles nothing."""
    if str(value) == "auto":
        return Implied(says="as the model has it", shows=False)
    return EAGER if str(value) == "1" else COMPILED


def device(value: Any) -> Implied:
    """On what vLLM runs: its own word, which no option of 0.33.0 says."""
    if str(value) == "cpu":
        return Implied(says="on a CPU")
    return Implied(says="on a GPU", shows=False)


def on_policy(value: Any) -> Implied:
    """Whose numerics SGLang follows."""
    if str(value) in ("none", "None"):
        return Implied(says="off")
    return Implied(says=f"as {value} trains; deterministic too", profile="sglang-rl-on-policy")


def groups(value: Any) -> Implied:
    """Replicas of SGLang, or groups of ranks that attend apart."""
    return Implied(says="one group of ranks" if value == 1 else f"{value} replicas, or groups that attend apart")
