"""How the layers of a model are divided over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

Division = Literal["vllm", "sglang"]
"""The engine whose rule is used where layers do not divide evenly."""

Sizes = tuple[int, ...]


def _vllm(layers: int, stages: int) -> Sizes:
    """vLLM 0.33.0, vllm/distributed/utils.py get_pp_indices: the remaining layers go one each to the second last stage,
    the third last, and so on.
    """
    sizes = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        sizes[-place] += 1
    return tuple(sizes)


def _sglang(layers: int, stages: int) -> Sizes:
    """sglang 0.5.23, srt/distributed/utils.py get_pp_indices: the remaining layers go one each to the last stages."""
    more = layers % stages
    return tuple(layers // stages + (stage >= stages - more) for stage in range(stages))


DIVISIONS: Final[Mapping[Division, Callable[[int, int], Sizes]]] = {"vllm": _vllm, "sglang": _sglang}
"""By engine, the function that gives the number of layers of each stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`count` stages, and how layers are divided: the number of layers of each, an engine's rule, or evenly (None)."""

    count: int
    stages: Sizes | Division | None = None

    def sizes(self, layers: int) -> Sizes:
        """The number of layers of each stage, in order. Raises ValueError where `layers` cannot be divided so."""
        if self.count > layers:
            raise ValueError(
                f"{self.count} stages need a layer each, and the model has {layers}. Set `pipeline` to at most that"
            )
        if isinstance(self.stages, tuple):
            if sum(self.stages) != layers:
                raise ValueError(
                    f"stages of {_listed(self.stages)} layers have {sum(self.stages)} in all, and the model has "
                    f"{layers}. Give each layer a stage"
                )
            return self.stages
        if self.stages is None and layers % self.count:
            ways = (f"`stages: {name}` makes {_listed(rule(layers, self.count))}" for name, rule in DIVISIONS.items())
            raise ValueError(
                f"{layers} layers do not divide by {self.count} stages. Say how: {', '.join(ways)}; or give the "
                "layers of each"
            )
        return DIVISIONS[self.stages or "vllm"](layers, self.count)

    def last_layers(self, layers: int) -> Sizes:
        """The index of the last layer of every stage except the last stage. Raises ValueError as `sizes` does."""
        return tuple(end - 1 for end in accumulate(self.sizes(layers)[:-1]))

    def __str__(self) -> str:
        """`4`, `4 (vllm)`, `4 (7, 8, 8, 7)`."""
        how = _listed(self.stages) if isinstance(self.stages, tuple) else self.stages
        return f"{self.count}" if how is None else f"{self.count} ({how})"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
