"""What a program met at the nodes that are to be explained: one micro-batch, as values that enter and leave."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.steps import FORWARD

Values = Mapping[str, Tensor]
Ports = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sample:
    """One micro-batch, or step of a phase, as the function met it: the values that enter its region, by name, and what
    it gave.
    """

    values: Values
    given: Ports
    phase: Case = FORWARD

    @property
    def elements(self) -> int:
        """How many numbers the function gave."""
        return sum(port.numel() for port in self.given)

    @property
    def tokens(self) -> int:
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
        return sum(tensor.nbytes for tensor in (*self.values.values(), *self.given))
