"""What a program met at the nodes that are to be explained: one micro-batch, as values that enter and leave."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.explain.report import TokenPlace
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.steps import FORWARD

Values = Mapping[str, Tensor]
Ports = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sample:
    """One micro-batch, or step of a phase, as the function met it: the values that enter its region, by name, and what
    it gave.

    real: which tokens are no padding, bool [b, t], with the axis of tokens that the result has (None: all are); what
    the function gave at other tokens is compared with nothing. earlier: the steps before this one whose keys it reads,
    the first step first; an earlier step has its region's value by name, if that is known. number: which of the
    program's forwards it is. tokens: which sequences that has; places: the flat places there of those that are here,
    int64 [b, t]; None if it is all of them.
    """

    values: Values
    results: Ports
    phase: Case = FORWARD
    real: tuple[Tensor, int] | None = None
    earlier: tuple[Sample, ...] = ()
    number: int = 0
    tokens: Tokens | None = None
    places: Tensor | None = None

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where the sequences of a single row begin and end; nothing where it has but one."""
        if self.tokens is None or self.tokens.size[0] > 1 or self.tokens.ends:
            return ()
        begins = [sequence.places[0] for sequence in self.tokens.sequences[1:]]
        return tuple(pairwise((0, *begins, self.tokens.count))) if begins else ()

    @property
    def elements(self) -> int:
        """How many numbers the function gave."""
        return sum(port.numel() for port in self.compared)

    @property
    def compared(self) -> Ports:
        """What the function gave at tokens that are no padding."""
        return self.at_real(self.results)

    def at_real(self, ports: Sequence[Tensor]) -> Ports:
        """Ports at tokens that are no padding: as they are, or as one sequence [1, n, ...] of these."""
        if self.real is None:
            return tuple(ports)
        real, axis = self.real
        by_token = (port.movedim(axis, 1) for port in ports)
        # What has another shape is another value anyhow.
        return tuple(port[real].unsqueeze(0) if port.shape[:2] == real.shape else port for port in by_token)

    def place(self, sequence: int, position: int) -> TokenPlace:
        """Where a token of what is compared stands in the forward."""
        if self.real is not None:
            sequence, position = self.real[0].nonzero()[position].tolist()
        request = ""
        if self.tokens is not None:
            place = sequence * self.tokens.size[1] + position
            place = place if self.places is None else int(self.places[sequence, position])
            sequence, position, request = self.tokens.where(place)
        return TokenPlace(forward=self.number, sequence=sequence, position=position, request=request)

    def of_real(self, value: Tensor) -> Tensor:
        """Of the first tokens of the first sequences, [b, t, ...], those that are no padding."""
        if self.real is None:
            return value
        return value[self.real[0][: value.shape[0], : value.shape[1]]].unsqueeze(0)

    @property
    def count(self) -> int:
        """How many tokens went through the function; padded ones count."""
        entering = next(iter(self.values.values()))
        return math.prod(entering.shape[:2])

    @property
    def length(self) -> int:
        """How many tokens a sequence has."""
        return next(iter(self.values.values())).shape[1]

    @property
    def bytes(self) -> int:
        """What keeping it takes, the values that others keep too included."""
        return sum(tensor.nbytes for tensor in (*self.values.values(), *self.results))


def with_earlier(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Steps and those before them whose keys they read, each once."""
    yield from {id(step): step for sample in samples for step in (*sample.earlier, sample)}.values()
