"""Options that several engines have under names of their own, and what they imply wherever they stand."""

from __future__ import annotations

from typing import Any

from moeparity.errors import whole_number
from moeparity.plan.stages import Division
from moeparity.profiles.launch.options import Implied, LaunchSettings, Option, count, switch, word, words

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
ORIGINAL = "SGLANG_RETURN_ORIGINAL_LOGPROB"
"""By this variable, SGLang returns log-probabilities of logits before the temperature."""
LOGPROBS_MODES = {
    "raw_logprobs": Implied(says="log-probabilities of logits before the temperature"),
    "processed_logprobs": Implied(
        says="log-probabilities of what is sampled from: set log_probs:temperature to the sampler's"
    ),
    "raw_logits": Implied(says="logits in place of log-probabilities: set log_probs:form unrounded"),
    "processed_logits": Implied(
        says="logits over the temperature in place of log-probabilities: set log_probs:form unrounded, and "
        "log_probs:temperature to the sampler's"
    ),
}
"""vLLM's logprobs_mode."""
EAGER = Implied(says="kernels in C in place of Inductor's", overlay="vllm-eager")
COMPILED = Implied(says="compiled by Inductor where not enforced eager")


def dtype(value: Any) -> Implied:
    """The dtype of a side; `auto` is the checkpoint's."""
    names = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
    name = names.get(str(value))
    return Implied(says="the checkpoint's dtype" if name is None else f"dtype {name}", dtype=name)


def tensor_ranks(*names: str, role: str = "server") -> Option:
    """A number of ranks, tensor parallel."""
    return count(*names, implies=lambda value: placement("tensor", value), role=role)


def stages(*names: str, division: Division | None = None, role: str = "server") -> Option:
    """A number of stages of a pipeline; `division` is whose rule divides layers that do not divide evenly."""

    def implies(value: Any) -> Implied:
        if value == 1:
            return Implied(says="one stage")
        rule = {} if division is None else {"stages": division}
        return Implied(says=f"{value} stages, on ranks of their own", placement={"pipeline": value, **rule})

    return count(*names, implies=implies, role=role, quiet=True)


def layers_of_stages(name: str) -> Option:
    """An environment variable with the number of layers of each stage, between commas."""

    def implies(value: Any) -> Implied:
        parts = str(value).split(",") if value else []
        numbers = [number for part in parts if (number := whole_number(part.strip())) is not None]
        if len(numbers) != len(parts):
            return Implied(says="the layers of each stage", warns=f"{value!r} is no list of whole numbers")
        return Implied(says="the layers of each stage", placement={"stages": tuple(numbers)} if numbers else {})

    return Option(names=(name,), kind="word", default="", implies=implies, environment=True, quiet=True)


def expert_ranks(*names: str, role: str = "server") -> Option:
    """A number of ranks, expert parallel."""
    return count(*names, implies=lambda value: placement("expert", value), role=role)


FUSED_RANKS = (2, 4, 8)
"""Of vLLM's fused all-reduce and norm on Hopper: allreduce_rms_fusion.py:104-109."""


def vllm_tensor_ranks(*names: str, default: int = 1, role: str = "server") -> Option:
    """Tensor parallel in vLLM, where -O2 fuses the all-reduce with the norm."""

    def implies(value: Any) -> Implied:
        if value not in FUSED_RANKS:
            return placement("tensor", value)
        return Implied(
            says=f"placement tensor {value}; compiled vLLM on 2, 4 or 8 ranks: all-reduce, add and norm in one kernel",
            overlay="vllm-allreduce-norm",
            placement={"tensor": value},
        )

    return count(*names, implies=implies, default=default, role=role)


def placement(axis: str, ranks: int) -> Implied:
    """So many ranks along one axis of a placement."""
    return Implied(says=f"placement {axis} {ranks}" if ranks > 1 else "one rank", placement={axis: ranks})


def logprobs_mode(*names: str, default: str, role: str = "server") -> Option:
    """vLLM's logprobs_mode, wherever it is set."""
    return word(*names, default=default, implies=words(LOGPROBS_MODES, "{}"), choices=tuple(LOGPROBS_MODES), role=role)


def custom_all_reduce(engine: str, otherwise: str) -> Option:
    """A server's own all-reduce, switched off."""
    return switch(
        "disable_custom_all_reduce",
        on=Implied(says=f"NCCL in place of {engine}'s own all-reduce: state all_reduce:collective"),
        off=Implied(says=f"{engine}'s own all-reduce{otherwise}"),
    )


def fp32_head(overlay: str) -> Implied:
    """Logits in fp32, as an overlay of the engine has them."""
    return Implied(says="logits in fp32", overlay=overlay)


def on_cpu(settings: LaunchSettings) -> bool:
    """Whether vLLM says that it runs on a CPU."""
    return str(settings.values.get("device")) == "cpu"


def batch_invariant(name: str, profile: str, *, environment: bool = False) -> Option:
    """A server's deterministic mode, which is a profile of its own."""
    return switch(
        name,
        on=Implied(says="batch-invariant", profile=profile),
        off=Implied(says="not batch-invariant"),
        environment=environment,
    )
