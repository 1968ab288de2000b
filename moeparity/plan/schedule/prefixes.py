"""A prefix cache: which whole blocks of tokens have been computed already, and for which sequence."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.plan.schedule.steps import Copy
from moeparity.plan.schedule.token_grid import TokenGrid


class PrefixCache:
    """Blocks of `block` tokens, keyed by all tokens up to their end, with the sequence that computed each first; where
    `updates` of the weights are given, as columns of each sequence, also by how many of them had come in.
    """

    def __init__(self, grid: TokenGrid, block: int, updates: Sequence[Sequence[int]] | None = None) -> None:
        assert grid.ids is not None
        self.grid, self.ids, self.block, self.updates = grid, grid.ids, block, updates
        self.nodes: dict[tuple[int, tuple[int, ...], int], tuple[int, int]] = {}
        self.stored: dict[int, tuple[int, int]] = {}

    def hits(self, sequence: int, most: int) -> list[Copy]:
        """The whole blocks among a sequence's first `most` tokens that are in the cache, as copies; neighbours from one
        source are joined.
        """
        copies: list[Copy] = []
        node, count = 0, 0
        first = self.grid.spans[sequence][0]
        version = self._version(sequence, first, first)
        while count + self.block <= most:
            entry = self.nodes.get((node, self._tokens(sequence, count), version))
            if entry is None:
                break
            node, source = entry
            copy = Copy(sequence, first + count, first + count + self.block, source, self.grid.spans[source][0] - first)
            if copies and copies[-1].source == source:
                copy = copies.pop()._replace(last=copy.last)
            copies.append(copy)
            count += self.block
        self.stored[sequence] = node, count
        return copies

    def store(self, sequence: int, tokens: int) -> None:
        """Put the whole blocks of a sequence's first `tokens` tokens into the cache."""
        node, count = self.stored.get(sequence, (0, 0))
        first = self.grid.spans[sequence][0]
        while count + self.block <= tokens:
            start = first + count
            version = self._version(sequence, start, start + self.block - 1)
            node, _ = self.nodes.setdefault(
                (node, self._tokens(sequence, count), version), (len(self.nodes) + 1, sequence)
            )
            count += self.block
        self.stored[sequence] = node, count

    def _tokens(self, sequence: int, start: int) -> tuple[int, ...]:
        column = self.grid.spans[sequence][0] + start
        return self.ids[sequence][column : column + self.block]

    def _version(self, sequence: int, first: int, last: int) -> int:
        """How many updates had come in when these columns were computed; -1, which nobody asks for, where one came in
        between; 0 where versions are not told apart.
        """
        if self.updates is None:
            return 0
        before, after = (sum(update <= column for update in self.updates[sequence]) for column in (first, last))
        return before if before == after else -1
