"""From the sequences of a log to the columns that metrics are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.errors import LogError
from moeparity.logs.record import Sequence
from moeparity.metrics.chunk import UNKNOWN, Chunk

TOKENS = 1 << 18
"""Scored tokens of a chunk, about."""


@dataclass(slots=True)
class Chunker:
    """Cuts a stream of sequences into chunks of whole ones.

    groups: the code of each group in the labels, in the order first seen. unscored: sequences without a scored token.
    """

    groups: dict[str, int] = field(default_factory=dict)
    unscored: int = 0

    def chunks(self, sequences: Iterable[Sequence], *, tokens: int = TOKENS) -> Iterator[Chunk]:
        """Chunks of about so many scored tokens; a sequence is never cut.

        The sequences are as a `Log` gives them: both sides there, what is scored checked. Raises LogError for routes of
        unequal shape.
        """
        held: list[Sequence] = []
        size = 0
        for sequence in sequences:
            scored = int(sequence.mask.sum())
            self.unscored += not scored
            held.append(sequence)
            size += scored
            if size >= tokens:
                yield self._chunk(held)
                held, size = [], 0
        if held:
            yield self._chunk(held)

    def _chunk(self, held: list[Sequence]) -> Chunk:
        masks = [sequence.mask for sequence in held]
        counts = torch.tensor([int(mask.sum()) for mask in masks])

        def scored(columns: list[Tensor]) -> Tensor:
            return torch.cat([column[mask] for column, mask in zip(columns, masks, strict=True)])

        return Chunk(
            rollout=scored([_given(sequence.rollout) for sequence in held]).double(),
            trainer=scored([_given(sequence.trainer) for sequence in held]).double(),
            sequence=torch.repeat_interleave(torch.arange(len(held)), counts),
            position=scored([torch.arange(len(s.token_ids)) - (s.prompt or 0) for s in held]),
            tokens=scored([sequence.token_ids for sequence in held]),
            ids=tuple(sequence.id for sequence in held),
            where=tuple(sequence.where for sequence in held),
            labels=self._labels(held, counts, masks),
            values=_values(held, masks),
        )

    def _labels(self, held: list[Sequence], counts: Tensor, masks: list[Tensor]) -> Mapping[str, Tensor]:
        """Columns that some sequence of the chunk can fill; the tokens of the others are of unknown step, lag, ..."""
        whole = {
            "step": [sequence.step for sequence in held],
            "group": [None if s.group is None else self.groups.setdefault(s.group, len(self.groups)) for s in held],
        }
        found = {}
        for name, values in whole.items():
            if any(value is not None for value in values):
                codes = torch.tensor([UNKNOWN if value is None else value for value in values])
                found[name] = torch.repeat_interleave(codes, counts)
        tokens = {"version_lag": [_lag(sequence) for sequence in held], "flipped": [_flipped(s) for s in held]}
        blank = {"version_lag": UNKNOWN, "flipped": -1}
        for name, columns in tokens.items():
            if any(column is not None for column in columns):
                found[name] = torch.cat([
                    torch.full((int(mask.sum()),), blank[name]) if column is None else column[mask]
                    for column, mask in zip(columns, masks, strict=True)
                ])  # fmt: skip
        return found


def _given(column: Tensor | None) -> Tensor:
    assert column is not None
    return column


def _values(held: list[Sequence], masks: list[Tensor]) -> Mapping[str, Tensor]:
    """Further columns of numbers; NaN for the tokens of sequences that lack one which another of the chunk has."""
    columns = [{"entropy": s.entropy, **{key: s.extra.get(key) for key in ("current", "advantages")}} for s in held]
    found = {}
    for key in ("entropy", "current", "advantages"):
        if any(each[key] is not None for each in columns):
            parts = []
            for each, mask in zip(columns, masks, strict=True):
                column = each[key]
                parts.append(torch.full((int(mask.sum()),), torch.nan) if column is None else column[mask])
            found[key] = torch.cat([part.double() for part in parts])
    return found


def _lag(sequence: Sequence) -> Tensor | None:
    """The trainer's weight version less that which sampled each token; `UNKNOWN` where one of them is."""
    if sequence.versions is None or sequence.trainer_version is None:
        return None
    return torch.where(sequence.versions >= 0, sequence.trainer_version - sequence.versions, UNKNOWN)


def _flipped(sequence: Sequence) -> Tensor | None:
    """Whether the routes that led to each token differ: 1 in some layer's set of experts, 0 in none, -1 unknown.

    A token is predicted by the position before it, and `routed_experts` tells of positions. None without the routes of
    both sides. Raises LogError for routes of unequal shape.
    """
    if not {"routed_experts", "trainer_routed_experts"} <= sequence.extra.keys():
        return None
    sampler, trainer = (sequence.extra[key] for key in ("routed_experts", "trainer_routed_experts"))
    if sampler.shape != trainer.shape:
        raise LogError(
            f"{sequence.where}: sequence {sequence.id!r}: the sampler's routes have shape {list(sampler.shape)}, the "
            f"trainer's {list(trainer.shape)}; equal [tokens, layers, experts per token] are expected. Both sides must "
            "number the same layers."
        )
    known = ((sampler >= 0) & (trainer >= 0)).flatten(1).all(1)
    differs = (sampler.sort(-1).values != trainer.sort(-1).values).flatten(1).any(1)
    return torch.where(known, differs.long(), -1).roll(1).index_fill(0, torch.zeros(1, dtype=torch.int64), -1)
