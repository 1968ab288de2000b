"""Log-softmax over a vocabulary that is cut over ranks: the maximum and the sum of exponentials are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def log_softmax(
    shards: Sequence[torch.Tensor],
    total: Callable[[torch.Tensor], torch.Tensor],
    reduce: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """Log-probabilities [..., V/n] of each rank's own part of the vocabulary, in the logits' dtype.

    `shards`: one tensor [..., V/n] of logits for each of n ranks. The maximum over all ranks has no order. `total` adds
    up a rank's own exponentials [..., V/n] -> [..., 1], `reduce` the n sums, as every rank gets them; the result is
    (x - max) - log(sum). Source imitated: NVIDIA-NeMo/RL `nemo_rl/distributed/model_utils.py`
    (_compute_distributed_log_softmax) at 0433dae8dd.
    """
    maximum = torch.stack([x.amax(-1, keepdim=True) for x in shards]).amax(0)
    shifted = [x - maximum for x in shards]
    totals = reduce([total(x.exp()) for x in shifted])
    return [x - total.log() for x, total in zip(shifted, totals, strict=True)]
