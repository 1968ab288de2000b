"""How near the values that a trial gives come to those that are to be explained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from moeparity.evidence.explain.sample import Ports, Sample
from moeparity.metrics.divergence import compare
from moeparity.numerics.bits import int_view, same_bits

OTHER_DTYPE: Final = 1e3
"""How much more counts what a value in another dtype leaves unexplained: it can never give all bits, and the dtype of
what is to be explained is known from the start."""


@dataclass(slots=True)
class Score:
    """How near the kernels' values come to the function's, over all ports of some micro-batches.

    elements, equal_elements: elements compared, and those with equal values. unexplained: the sum over the elements of
    the squared difference, in units of the mean square of the function's port. A pair of whole numbers that differ
    counts 1; so does a value that is not finite on one side or has other bits. all_bits: shapes, dtypes and every bit
    are equal. refused: an op refuses the choices on some micro-batch, of which nothing is equal then.
    """

    elements: int = 0
    equal_elements: int = 0
    unexplained: float = 0.0
    ulps: float = 0.0
    all_bits: bool = True
    same_dtypes: bool = True
    refused: bool = False

    @property
    def exact(self) -> bool:
        """Whether every bit is equal, of at least one element."""
        return self.all_bits and self.elements > 0

    @property
    def equal(self) -> float:
        """The share of equal elements."""
        return self.equal_elements / self.elements if self.elements else 0.0

    @property
    def remainder(self) -> float:
        """What is left unexplained, per element; 0 where all bits are equal, more than 0 elsewhere."""
        if self.exact:
            return 0.0
        # Bits may differ where values do not, or hardly: in a dtype, in the sign of a zero.
        tiny = 1e-12 * (self.elements - self.equal_elements + 1)
        return self.distance * (1.0 if self.same_dtypes else OTHER_DTYPE) + tiny

    @property
    def distance(self) -> float:
        """The mean squared difference per element, in units of the function's own mean square."""
        return self.unexplained / self.elements if self.elements else math.inf

    @property
    def local_error(self) -> float:
        """The relative error, in units of the recorded values' own root mean square."""
        return math.sqrt(self.distance)

    @property
    def mean_ulp(self) -> float:
        """The mean distance in ulps of the coarser dtype. Two whole numbers that differ are 1 apart. Infinite if a
        value is not finite on one side or has another shape, or if nothing was compared.
        """
        return self.ulps / self.elements if self.elements else math.inf

    @classmethod
    def of_refused(cls, sample: Sample) -> Score:
        """Of choices that an op refuses on a micro-batch: nothing is equal."""
        return cls(elements=sample.elements, unexplained=math.inf, ulps=math.inf, all_bits=False, refused=True)

    @classmethod
    def of(cls, ports: Ports, trial: Ports) -> Score:
        """The function's values of one micro-batch against a trial's."""
        score = cls()
        for value, tried_value in zip(ports, trial, strict=True):
            score.elements += value.numel()
            score.all_bits &= same_bits(value, tried_value)
            score.same_dtypes &= value.dtype == tried_value.dtype
            if value.shape != tried_value.shape:
                score.unexplained = score.ulps = math.inf
            elif value.is_floating_point() and tried_value.is_floating_point():
                error = compare(value, tried_value)
                score.equal_elements += error.equal
                score.ulps += math.inf if error.excluded else error.sum_ulp
                scale = error.squared_reference / value.numel() or 1.0
                score.unexplained += error.squared_difference / scale + error.excluded
            else:
                differ = int((value != tried_value).sum())
                score.equal_elements += value.numel() - differ
                score.ulps += differ
                score.unexplained += differ
        return score

    def add(self, further: Score) -> None:
        """Count other micro-batches too."""
        self.elements += further.elements
        self.equal_elements += further.equal_elements
        self.unexplained += further.unexplained
        self.ulps += further.ulps
        self.all_bits &= further.all_bits
        self.refused |= further.refused
        self.same_dtypes &= further.same_dtypes


def tokens_apart(ports: Ports, trial: Ports, axis: int) -> Tensor | None:
    """How many elements of each token have other bits, at all ports together, int64 [B, T]; of two dtypes, which have
    other values. None if shapes differ, or have no such axis of tokens.
    """
    apart: Tensor | None = None
    for recorded, computed in zip(ports, trial, strict=True):
        if recorded.dim() <= axis or recorded.shape != computed.shape:
            return None
        same_dtype = recorded.dtype == computed.dtype
        elements = int_view(recorded) != int_view(computed) if same_dtype else recorded != computed
        by_token = elements.movedim(axis, 1)
        of_port = by_token.reshape(*by_token.shape[:2], -1).sum(-1)
        if apart is not None and apart.shape != of_port.shape:
            return None
        apart = of_port if apart is None else apart + of_port
    return apart
