"""Logs made up for tests: chunks of seeded numbers, and the noise that rounding makes."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from moeparity.errors import Where
from moeparity.logs.record import Sequence
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.registry import METRICS


def chunk(*sequences: tuple[list[float], list[float]], **values: list[float]) -> Chunk:
    """A chunk of sequences given as (rollout, trainer) log-probabilities."""
    lengths = torch.tensor([len(rollout) for rollout, _ in sequences])
    total = int(lengths.sum())
    columns = [torch.tensor([x for pair in sequences for x in pair[side]], dtype=torch.float64) for side in (0, 1)]
    return Chunk(
        rollout=columns[0],
        trainer=columns[1],
        sequence=torch.repeat_interleave(torch.arange(len(sequences)), lengths),
        position=torch.cat([torch.arange(n) for n in lengths.tolist()] or [torch.zeros(0, dtype=torch.int64)]),
        tokens=torch.zeros(total, dtype=torch.int64),
        ids=tuple(f"s{index}" for index in range(len(sequences))),
        where=tuple(Where(Path("log.jsonl"), index + 1) for index in range(len(sequences))),
        values={name: torch.tensor(column, dtype=torch.float64) for name, column in values.items()},
    )


def noisy(lengths: list[int], size: float, seed: int = 0) -> Chunk:
    """Log-probabilities of a sampler, and a trainer's off by Gaussian noise of `size`; NaN nowhere, all at most 0."""
    generator = torch.Generator().manual_seed(seed)
    pairs: list[tuple[list[float], list[float]]] = []
    extra: dict[str, list[float]] = {name: [] for name in ("entropy", "current", "advantages")}
    for n in lengths:
        rollout = -3 * torch.rand(n, dtype=torch.float64, generator=generator)
        trainer = (rollout + size * torch.randn(n, dtype=torch.float64, generator=generator)).clamp(max=0)
        current = (trainer + size * torch.randn(n, dtype=torch.float64, generator=generator)).clamp(max=0)
        pairs.append((rollout.tolist(), trainer.tolist()))
        extra["current"] += current.tolist()
        extra["entropy"] += (0.1 + torch.rand(n, dtype=torch.float64, generator=generator)).tolist()
        extra["advantages"] += torch.randn(n, dtype=torch.float64, generator=generator).tolist()
    return chunk(*pairs, **extra)


def estimates(*chunks: Chunk, names: list[str] | None = None) -> dict[str, float]:
    """The estimate of every metric, or of some."""
    totals = Accumulator(tuple(METRICS[name] for name in names) if names else tuple(METRICS.values()))
    for each in chunks:
        totals.add(each)
    return {metric.name: totals.estimate(metric) for metric in totals.metrics}


def padded(chunk_in: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """Rollout, trainer and mask [B, T] as trainers hold them, with junk where nothing is scored."""
    longest = int(chunk_in.counts.max())
    sides = torch.full((2, chunk_in.sequences, longest), -7.25, dtype=torch.float64)
    mask = torch.zeros(chunk_in.sequences, longest, dtype=torch.bool)
    for row in range(chunk_in.sequences):
        tokens_of = chunk_in.sequence == row
        mask[row, : int(tokens_of.sum())] = True
        sides[0, row, : int(tokens_of.sum())] = chunk_in.rollout[tokens_of]
        sides[1, row, : int(tokens_of.sum())] = chunk_in.trainer[tokens_of]
    return sides[0], sides[1], mask


def records(count: int, length: int, size: float, *, seed: int = 0) -> list[Sequence]:
    """Sequences as a log gives them."""
    tokens = noisy([length] * count, size, seed)
    lines = []
    for row in range(count):
        present = tokens.sequence == row
        lines.append(
            Sequence(
                id=f"s{row}",
                where=Where(Path("log.jsonl"), row + 1),
                token_ids=torch.arange(length),
                mask=torch.ones(length, dtype=torch.bool),
                rollout=tokens.rollout[present],
                trainer=tokens.trainer[present],
                prompt=0,
                step=row % 2,
            )
        )
    return lines
