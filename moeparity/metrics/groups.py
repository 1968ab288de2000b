"""Splits the scored tokens of chunks by position, probability, step, label or flip, with metrics for each group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.chunk import UNKNOWN, Chunk
from moeparity.metrics.declaration import By
from moeparity.metrics.registry import METRICS

POSITIONS = (0, 1, 16, 64, 256, 1024, 4096, 16384)
ROWS = (1, 2, 8, 32, 128, 512, 2048)
PROBABILITIES = (0.0, 1e-3, 1e-2, 0.1, 0.5, 0.9, 0.99)
BOUNDS: dict[By, tuple[int, ...]] = {"position": POSITIONS, "pads": POSITIONS, "rows": ROWS}
"""Where groups of whole numbers begin."""
GROUP_METRICS = tuple(METRICS[name] for name in ("k3", "mean_abs_delta", "max_abs_delta", "mean_ratio", "f2"))
"""The metrics of each group."""


def keys(chunk: Chunk, by: By) -> Tensor | None:
    """The group of each token, int64 [N]; `UNKNOWN` for tokens whose group the log does not tell; None if it tells no
    group.
    """
    if by == "position":
        return _bucket(chunk.position, POSITIONS)
    if by == "probability":
        bounds = torch.tensor([math.log(p) if p else -math.inf for p in PROBABILITIES], dtype=torch.float64)
        return torch.bucketize(chunk.rollout, bounds, right=True) - 1
    labels = chunk.labels.get(by)
    if labels is None or by not in BOUNDS:
        return labels
    return torch.where(labels == UNKNOWN, UNKNOWN, _bucket(labels, BOUNDS[by]))


def _bucket(numbers: Tensor, bounds: tuple[int, ...]) -> Tensor:
    return torch.bucketize(numbers, torch.tensor(bounds), right=True) - 1


def name(by: By, key: int) -> str:
    """A group in words. For some groups this is a number, whose name only the reader of the log knows."""
    if by == "probability":
        last = key + 1 == len(PROBABILITIES)
        return f"P {PROBABILITIES[key]:g} to {1 if last else format(PROBABILITIES[key + 1], 'g')}"
    if by in BOUNDS:
        low, *above = BOUNDS[by][key:]
        return f"{low} on" if not above else str(low) if above[0] == low + 1 else f"{low} to {above[0] - 1}"
    if by == "retokenised":
        return ("same ids before it", "other ids of the same text before it")[key]
    if by == "flipped":
        return {0: "not flipped", 1: "flipped"}.get(key, "routes unknown")
    return str(key)


def select(chunk: Chunk, mask: Tensor) -> Chunk:
    """The chunk reduced to the tokens in `mask` (bool [N]), and to sequences that have one."""
    present, sequence = torch.unique_consecutive(chunk.sequence[mask], return_inverse=True)
    rows = present.tolist()
    return Chunk(
        rollout=chunk.rollout[mask],
        trainer=chunk.trainer[mask],
        sequence=sequence,
        position=chunk.position[mask],
        tokens=chunk.tokens[mask],
        ids=tuple(chunk.ids[row] for row in rows),
        where=tuple(chunk.where[row] for row in rows),
        contents=tuple(chunk.content[present].tolist()),
        labels={key: column[mask] for key, column in chunk.labels.items()},
        values={key: column[mask] for key, column in chunk.values.items()},
    )


@dataclass(slots=True)
class Groups:
    """An accumulator for each group that was seen. unknown: how many tokens have no known group."""

    by: By
    parts: dict[int, Accumulator] = field(default_factory=dict)
    unknown: int = 0

    def add(self, chunk: Chunk) -> None:
        """Take in whole sequences."""
        codes = keys(chunk, self.by)
        if codes is None:
            self.unknown += chunk.tokens.numel()
            return
        self.unknown += int((codes == UNKNOWN).sum())
        for key in torch.unique(codes[codes != UNKNOWN]).tolist():
            self.parts.setdefault(key, Accumulator(GROUP_METRICS)).add(select(chunk, codes == key))

    def __iter__(self) -> Iterator[tuple[int, Accumulator]]:
        """The groups in the order of their keys."""
        return iter(sorted(self.parts.items()))
