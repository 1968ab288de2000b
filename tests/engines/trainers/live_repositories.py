"""Log-probabilities of NeMo-RL and slime on CPU, from their repositories, run by test_functions.py.

The vocabulary lies on one rank.
"""

from __future__ import annotations

import os
import tempfile

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from nemo_rl.distributed import model_utils
from slime.utils.ppo_utils import _calculate_log_probs_and_entropy_chunk
from torch import Tensor

from tests.engines.live import answer


def log_probs(x: Tensor, ids: Tensor, temperature: float, form: str) -> dict[str, Tensor]:
    """x: logits [T, V]. `form`: the function."""
    logits, target, group = x.clone().unsqueeze(0), ids.unsqueeze(0), torch.distributed.group.WORLD
    vocabulary = x.shape[-1]
    if form == "slime":
        log_probs_out = _calculate_log_probs_and_entropy_chunk(
            logits[0], ids, None, with_entropy=False, log_prob_keep_mask=None
        )[0].squeeze(-1)
    elif form == "vocab_parallel_log_softmax":
        log_probs_out = model_utils.vocab_parallel_log_softmax(logits, temperature).gather(-1, target.unsqueeze(-1))
        log_probs_out = log_probs_out[0, :, 0]
    elif form == "ChunkedDistributedLogprob":
        log_probs_out = model_utils.ChunkedDistributedLogprob.apply(logits, target, 0, vocabulary, 4, group, True)[0]
    else:
        log_probs_out = model_utils.DistributedLogprob.apply(logits, target, 0, vocabulary, group, True)[0]
    return {"output": log_probs_out}


def one_rank() -> None:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        torch.distributed.init_process_group("gloo", f"file://{file.name}", rank=0, world_size=1)


if __name__ == "__main__":
    one_rank()
    answer({"log_probs": log_probs})
