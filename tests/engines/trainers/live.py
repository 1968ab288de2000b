"""Log-probabilities of verl, TRL and OpenRLHF on CPU, from their wheels, run by test_functions.py.

FlashAttention is absent: where it is there, verl and OpenRLHF call its kernel in Triton. So is Triton, with which TRL
takes a kernel of its own on GPUs. verl's vocab-parallel function calls megatron-core 0.16.1 with one rank.
"""

from __future__ import annotations

import os
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer

LEFT_OUT = "ray tensordict pandas accelerate datasets psutil peft deepspeed pylatexenc codetiming wandb mistral_common"
"""Schedulers, data sets, adapters, and what answers are graded with."""

with left_out(*LEFT_OUT.split()):
    from megatron.core import parallel_state
    from trl.trainer.utils import selective_log_softmax
    from verl.utils import torch_functional
    from verl.utils.megatron.tensor_parallel import vocab_parallel_log_probs_from_logits

with left_out(*LEFT_OUT.split(), "flash_attn"):
    from openrlhf.models.utils import log_probs_from_logits


def log_probs(x: Tensor, ids: Tensor, temperature: float, form: str) -> dict[str, Tensor]:
    """x: logits [T, V], with a row in front as a batch. `form`: the function."""
    logits, labels = x.clone().unsqueeze(0), ids.unsqueeze(0)
    if form == "trl":
        log_probs_out = selective_log_softmax(logits, labels, temperature)
    elif form == "openrlhf":
        log_probs_out = log_probs_from_logits(logits, labels, temperature)
    elif form == "vocab_parallel_log_probs_from_logits":
        log_probs_out = vocab_parallel_log_probs_from_logits(logits, labels)
    else:
        log_probs_out = getattr(torch_functional, form)(logits, labels)
    return {"output": log_probs_out.squeeze(0)}


def one_rank() -> None:
    """Megatron's groups, of this process alone."""
    with tempfile.NamedTemporaryFile(delete=False) as file:
        torch.distributed.init_process_group("gloo", f"file://{file.name}", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()


if __name__ == "__main__":
    one_rank()
    answer({"log_probs": log_probs})
