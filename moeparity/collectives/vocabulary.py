"""Log-softmax over a vocabulary that is cut over ranks: the maximum and the sum of exponentials are reduced."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.collectives.declaration import Collective
from moeparity.collectives.execute import all_reduce


def log_softmax(shards: Sequence[torch.Tensor], sum_by: Collective) -> list[torch.Tensor]:
    """Log-probabilities [..., V/n] of each rank's own part of the vocabulary, fp32.

    `shards`: one tensor [..., V/n] of logits for each of n ranks; they are raised to fp32 first. The maximum over all
    ranks has no order. exp and each rank's own sum are torch's (an order of torch's own), the n sums are added by
    `sum_by`; the result is (x - max) - log(sum). Source imitated: NVIDIA-NeMo/RL `nemo_rl/distributed/model_utils.py`
    (_compute_distributed_log_softmax) at 0433dae8dd.
    """
    wide = [shard.float() for shard in shards]
    maximum = torch.stack([x.amax(-1, keepdim=True) for x in wide]).amax(0)
    shifted = [x - maximum for x in wide]
    totals = all_reduce(sum_by, [x.exp().sum(-1, keepdim=True) for x in shifted])
    return [x - total.log() for x, total in zip(shifted, totals, strict=True)]
