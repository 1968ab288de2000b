"""Which token of a grid each row of a program's forwards is: by the ids themselves, forward after forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from moeparity.evidence.maps.forwards import Forward

NOWHERE = -1
"""In place of a token of the grid: the row is of none, as padding of the program's own is."""


@dataclass(slots=True)
class Placing:
    """Finds the place of each forward on a grid of ids [B, T] int64, whose tokens are real where `mask` [B, T] bool is
    true.

    A forward's row is one of three: a sequence of the grid, padding included; the next real tokens of a sequence,
    behind those of earlier forwards, with or without padding of its own at one end; or several of these behind each
    other (packed). A token is placed once: if several forwards have the same tokens, the first counts.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    real: list[list[int]] = field(init=False)
    columns: list[list[int]] = field(init=False)
    placed: list[int] = field(init=False)
    slots: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing placed."""
        self.columns = [row.nonzero().flatten().tolist() for row in self.mask]
        self.real = [row[real].tolist() for row, real in zip(self.ids, self.mask, strict=True)]
        self.placed, self.slots = [0] * len(self.real), {}

    def place(self, way: Forward) -> torch.Tensor:
        """Of each row of a forward, sequence by sequence, the token b * T + t of the grid, int64 [b * t]."""
        index = torch.full(way.ids.shape, NOWHERE)
        used: set[int] = set()
        for slot, row in enumerate(way.ids.tolist()):
            parts = self._alone((len(way.ids), slot), row, used) or self._packed(row, used)
            for at, sequence, columns in parts:
                index[slot, at : at + len(columns)] = torch.tensor(columns) + sequence * self.ids.shape[1]
        return index.flatten()

    def _alone(self, slot: tuple[int, int], row: Sequence[int], used: set[int]) -> list[tuple[int, int, list[int]]]:
        """A row that is of one sequence: where in the row it begins, which it is, and its columns."""
        before = self.slots.get(slot)
        candidates = [s for s in range(len(self.real)) if s not in used]
        # The same slot of a batch goes on with the same sequence.
        for sequence in sorted(candidates, key=lambda s: s != before):
            placed = self._fits(sequence, row)
            if placed is not None:
                at, columns = placed
                self._take(sequence, columns, used)
                self.slots[slot] = sequence
                return [(at, sequence, columns)]
        return []

    def _fits(self, sequence: int, row: Sequence[int]) -> tuple[int, list[int]] | None:
        done, columns = self.placed[sequence], self.columns[sequence]
        if not done and row == self.ids[sequence].tolist():
            return 0, list(range(len(row)))
        ahead = self.real[sequence][done:]
        if ahead[: len(row)] == row:
            return 0, columns[done : done + len(row)]
        filled = len(row) - len(ahead)
        if not done and filled > 0 and ahead:
            if row[: len(ahead)] == ahead and len(set(row[len(ahead) :])) == 1:
                return 0, columns
            if row[filled:] == ahead and len(set(row[:filled])) == 1:
                return filled, columns
        return None

    def _packed(self, row: Sequence[int], used: set[int]) -> list[tuple[int, int, list[int]]]:
        """A row of several sequences behind each other, with one token repeated behind the last one as padding. Nothing
        if some token belongs to none of them: then it is another row, which has a few tokens in common by chance.
        """
        parts: list[tuple[int, int, list[int]]] = []
        used_sequences = set(used)
        at = 0
        while at < len(row):
            length, sequence = max(self._runs(row, at, used_sequences), default=(0, 0))
            if not length:
                break
            done = self.placed[-sequence]
            parts.append((at, -sequence, self.columns[-sequence][done : done + length]))
            used_sequences.add(-sequence)
            at += length
        if len(set(row[at:])) > 1 or len(parts) < 2:
            return []
        for _, sequence, columns in parts:
            self._take(sequence, columns, used)
        return parts

    def _runs(self, row: Sequence[int], at: int, used: set[int]) -> Iterator[tuple[int, int]]:
        """Of each sequence how many of its next tokens lie here, with its number, negative: of equals the first."""
        for sequence, ids in enumerate(self.real):
            if sequence in used:
                continue
            ahead = ids[self.placed[sequence] :]
            length = next((i for i, (a, b) in enumerate(zip(row[at:], ahead, strict=False)) if a != b), None)
            length = min(len(row) - at, len(ahead)) if length is None else length
            # A run that ends in the midst of both is one by chance, unless it is a step of decoding.
            if length in (len(ahead), len(row) - at) or (length and self.placed[sequence]):
                yield length, -sequence

    def _take(self, sequence: int, columns: Sequence[int], used: set[int]) -> None:
        used.add(sequence)
        real = set(self.columns[sequence])
        self.placed[sequence] += sum(column in real for column in columns)
