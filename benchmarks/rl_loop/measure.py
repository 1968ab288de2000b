"""One training step in numbers: the project's own metrics of the record against the trainer, and the run's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moeparity.errors import Where
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.registry import METRICS

NAMES = ("k1", "k3", "mean_abs_delta", "mean_ratio", "ess_fraction", "f2")
Row = Mapping[str, float]


def row(trainer: Tensor, record: Tensor, ids: Tensor) -> Row:
    """Metrics of log-probabilities [B, T] of completions `ids` [B, T], over all tokens; `NAMES` are the keys."""
    sequences, length = trainer.shape
    accumulator = Accumulator(tuple(METRICS[name] for name in NAMES))
    accumulator.add(
        Chunk(
            trainer=trainer.double().flatten(),
            rollout=record.double().flatten(),
            sequence=torch.arange(sequences).repeat_interleave(length),
            position=torch.arange(length).repeat(sequences),
            tokens=ids.flatten(),
            ids=tuple(map(str, range(sequences))),
            where=(Where(Path("rollouts")),) * sequences,
        )
    )
    return {name: accumulator.estimate(METRICS[name]) for name in NAMES}
