"""Turns the sequences of a log into chunks, the columns from which metrics are computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.errors import LogError
from moeparity.logs.record import Sequence
from moeparity.metrics.chunk import UNKNOWN, Chunk

TOKENS = 1 << 18
"""The approximate number of scored tokens in a chunk."""


@dataclass(slots=True)
class Chunker:
    """Cuts a stream of sequences into chunks of whole sequences.

    groups, classes: name of each group, and of each class of tokens -> its code in the labels, in the order first seen.
    unscored: how many sequences have no scored token.
    """

    groups: dict[str, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    unscored: int = 0

    def chunks(self, sequences: Iterable[Sequence], *, tokens: int = TOKENS) -> Iterator[Chunk]:
        """Chunks of about `tokens` scored tokens; a sequence is never cut.

        The sequences are those of a `Log`: both sides are there, and scored values were checked. Raises LogError for
        routes of different shapes.
        """
        pending: list[Sequence] = []
        size = 0
        for sequence in sequences:
            scored = int(sequence.mask.sum())
            self.unscored += not scored
            pending.append(sequence)
            size += scored
            if size >= tokens:
                yield self._chunk(pending)
                pending, size = [], 0
        if pending:
            yield self._chunk(pending)

    def _chunk(self, sequences: list[Sequence]) -> Chunk:
        masks = [sequence.mask for sequence in sequences]
        counts = torch.tensor([int(mask.sum()) for mask in masks])

        def scored(columns: list[Tensor]) -> Tensor:
            return torch.cat([column[mask] for column, mask in zip(columns, masks, strict=True)])

        return Chunk(
            rollout=scored([_present(sequence.rollout) for sequence in sequences]).double(),
            trainer=scored([_present(sequence.trainer) for sequence in sequences]).double(),
            sequence=torch.repeat_interleave(torch.arange(len(sequences)), counts),
            position=scored([torch.arange(len(s.token_ids)) - (s.prompt or 0) for s in sequences]),
            tokens=scored([sequence.token_ids for sequence in sequences]),
            ids=tuple(sequence.id for sequence in sequences),
            where=tuple(sequence.where for sequence in sequences),
            contents=tuple(map(_content, sequences)),
            labels=self._labels(sequences, counts, masks),
            values=_values(sequences, masks),
        )

    def _labels(self, sequences: list[Sequence], counts: Tensor, masks: list[Tensor]) -> Mapping[str, Tensor]:
        """The columns of labels that some sequence of the chunk can fill; tokens of other sequences are `UNKNOWN`
        there.
        """
        whole = {
            "step": [sequence.step for sequence in sequences],
            "pads": [None if sequence.pads is None else sequence.pads.before for sequence in sequences],
            "group": [
                None if s.group is None else self.groups.setdefault(s.group, len(self.groups)) for s in sequences
            ],
        }
        labels = {}
        for name, values in whole.items():
            if any(value is not None for value in values):
                codes = torch.tensor([UNKNOWN if value is None else value for value in values])
                labels[name] = torch.repeat_interleave(codes, counts)
        tokens = {
            "version_lag": [_lag(sequence) for sequence in sequences],
            "flipped": [_flipped(s) for s in sequences],
            "class": [self._classes(sequence) for sequence in sequences],
            **{
                name: [s.labels.get(name) for s in sequences]
                for name in sorted({n for s in sequences for n in s.labels})
            },
        }
        blank = {"flipped": -1}
        for name, columns in tokens.items():
            if any(column is not None for column in columns):
                labels[name] = torch.cat([
                    torch.full((int(mask.sum()),), blank.get(name, UNKNOWN)) if column is None else column[mask]
                    for column, mask in zip(columns, masks, strict=True)
                ])  # fmt: skip
        return labels

    def _classes(self, sequence: Sequence) -> Tensor | None:
        """The code of each token's class, int64 [n]; None if the sequence has none."""
        if sequence.classes is None:
            return None
        return torch.tensor([self.classes.setdefault(name, len(self.classes)) for name in sequence.classes])


def _content(sequence: Sequence) -> int:
    """A number that repetitions of a sequence have in common: of its tokens, mask and log-probabilities. Tokens alone
    would not do, since a log may lack the prompts.
    """
    sides = (sequence.token_ids, sequence.mask, sequence.rollout, sequence.trainer)
    return hash(tuple(None if side is None else side.numpy().tobytes() for side in sides))


def _present(column: Tensor | None) -> Tensor:
    assert column is not None
    return column


def _values(sequences: list[Sequence], masks: list[Tensor]) -> Mapping[str, Tensor]:
    """Further columns of numbers, if some sequence of the chunk has them; NaN for tokens of sequences that lack
    them.
    """
    columns = [
        {"entropy": s.entropy, **{key: s.extra.get(key) for key in ("current", "advantages")}} for s in sequences
    ]
    values = {}
    for key in ("entropy", "current", "advantages"):
        if any(mapping[key] is not None for mapping in columns):
            parts = []
            for mapping, mask in zip(columns, masks, strict=True):
                column = mapping[key]
                parts.append(torch.full((int(mask.sum()),), torch.nan) if column is None else column[mask])
            values[key] = torch.cat([part.double() for part in parts])
    return values


def _lag(sequence: Sequence) -> Tensor | None:
    """The trainer's weight version minus the one that sampled each token; `UNKNOWN` if one of them is unknown."""
    if sequence.versions is None or sequence.trainer_version is None:
        return None
    return torch.where(sequence.versions >= 0, sequence.trainer_version - sequence.versions, UNKNOWN)


def _flipped(sequence: Sequence) -> Tensor | None:
    """Whether the routes that led to each token differ: 1 if some layer's expert set does, 0 if none, -1 if unknown.

    A token is predicted by the position before it, and `routed_experts` is by position. None unless both sides have
    routes. Raises LogError for routes of different shapes.
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
    has_routes = ((sampler >= 0) & (trainer >= 0)).flatten(1).all(1)
    differs = (sampler.sort(-1).values != trainer.sort(-1).values).flatten(1).any(1)
    return torch.where(has_routes, differs.long(), -1).roll(1).index_fill(0, torch.zeros(1, dtype=torch.int64), -1)
