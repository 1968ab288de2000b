"""The log-probabilities of RL trainers that are run here, and our attributes for them."""

from __future__ import annotations

from typing import Any

from tests.engines import inputs, ours
from tests.engines.function import Engine, Function
from tests.ops.plain import BF16, FP32

LOGSUMEXP = {"form": "minus_logsumexp"}
OTHERS = ({"log_probs:form": "shifted"}, {"log_probs:form": "log_of_softmax"})


def function(
    name: str,
    file: str,
    form: str,
    at: dict[str, Any],
    *others: dict[str, Any],
    temperatures: tuple[float, ...] = (1.0,),
    in_bf16: bool = False,
    assumed: str = "",
) -> Function:
    """Of logits in fp32, or of those in bf16 that it upcasts itself."""
    dtypes = (BF16, FP32) if in_bf16 else (FP32,)
    return Function(
        "log_probs",
        name,
        file,
        inputs.logits(temperatures, dtypes, chosen=True, form=form),
        ours.log_probs,
        lambda case: ours.log_probs_at(case, **at),
        others or OTHERS,
        assumed=assumed,
    )  # fmt: skip


NO_FLASH = "logits in fp32; FlashAttention absent"
VERL = Engine(
    "verl 0.9.1",
    "trainers.live",
    ("verl", "trl", "openrlhf", "megatron-core"),
    (
        function("logprobs_from_logits", "verl/utils/torch_functional.py", "logprobs_from_logits", LOGSUMEXP,
                 assumed=NO_FLASH),
        function("logprobs_from_logits_v2", "verl/utils/torch_functional.py", "logprobs_from_logits_v2", LOGSUMEXP,
                 assumed="logits in fp32"),
        function("logprobs_from_logits_naive", "verl/utils/torch_functional.py", "logprobs_from_logits_naive", {},
                 {"log_probs:form": "minus_logsumexp"}, {"log_probs:form": "log_of_softmax"},
                 assumed="logits in fp32"),
        function("vocab_parallel_log_probs_from_logits", "verl/utils/megatron/tensor_parallel.py",
                 "vocab_parallel_log_probs_from_logits", {"form": "shifted"}, {"log_probs:form": "minus_logsumexp"},
                 {"log_probs:order": "sequential"}, in_bf16=True, assumed="megatron-core 0.16.1, one rank"),
    ),
)  # fmt: skip
TRL = Engine(
    "TRL 1.16.0",
    "trainers.live",
    VERL.folders,
    (
        function("selective_log_softmax", "trl/trainer/utils.py", "trl", LOGSUMEXP, *OTHERS,
                 {"log_probs:scaled": BF16}, temperatures=(1.0, 0.7, 1.3),
                 assumed="logits in fp32; no GPU, where it takes a kernel in Triton"),
    ),
)  # fmt: skip
OPENRLHF = Engine(
    "OpenRLHF 0.11.2",
    "trainers.live",
    VERL.folders,
    (
        function("log_probs_from_logits", "openrlhf/models/utils.py", "openrlhf", LOGSUMEXP,
                 temperatures=(1.0, 0.7, 1.3), assumed=NO_FLASH),
    ),
)  # fmt: skip

_MODEL_UTILS = "nemo_rl/distributed/model_utils.py"
SHIFTED = {"form": "shifted"}
SEQUENTIAL = ({"log_probs:form": "minus_logsumexp"}, {"log_probs:order": "sequential"})
NEMO_RL = Engine(
    "NeMo-RL 7ea279abfb",
    "trainers.live_repositories",
    ("nemo-rl", "slime"),
    (
        function("DistributedLogprob", _MODEL_UTILS, "DistributedLogprob", SHIFTED, *SEQUENTIAL, in_bf16=True,
                 assumed="one rank"),
        function("ChunkedDistributedLogprob", _MODEL_UTILS, "ChunkedDistributedLogprob", SHIFTED, *SEQUENTIAL,
                 in_bf16=True, assumed="one rank, chunks of 4 tokens"),
        function("vocab_parallel_log_softmax", _MODEL_UTILS, "vocab_parallel_log_softmax", {},
                 {"log_probs:form": "minus_logsumexp"}, {"log_probs:scaled": BF16}, temperatures=(1.0, 0.7),
                 in_bf16=True, assumed="one rank"),
    ),
)  # fmt: skip
SLIME = Engine(
    "slime 624b824a89",
    "trainers.live_repositories",
    NEMO_RL.folders,
    (
        function("_calculate_log_probs_and_entropy_chunk", "slime/utils/ppo_utils.py", "slime", SHIFTED, *SEQUENTIAL,
                 in_bf16=True, assumed="one rank"),
    ),
)  # fmt: skip
ENGINES = (VERL, TRL, OPENRLHF, NEMO_RL, SLIME)
