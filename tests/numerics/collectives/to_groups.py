"""Sums of the rows of all groups of ranks that attend apart, as engines bring them home: each group gets its own rows.

SGLang 0.5.23 (`srt/layers/dp_attention.py`): `padded` under DpPaddingMode.MAX_LEN, one reduce-scatter of every group's
rows filled up to the most that one has (dp_reduce_scatter_tensor); `sliced` under SUM_LEN, an all-reduce of all rows,
of which a group takes its own (dp_scatter). vLLM 0.33.0 (`distributed/device_communicators/pynccl.py`
reduce_scatterv): `reduced`, one reduce to each group of its rows, where groups have not as many; a reduce-scatter where
they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.numerics.collectives.declaration import Collective
from moeparity.numerics.collectives.execute import all_reduce, reduce_scatter
from moeparity.numerics.collectives.registry import scattering

WIDTH = 24


def rows_of(world: int, *, even: bool) -> tuple[int, ...]:
    """Rows of each group: as many, or one more with each."""
    return (5,) * world if even else tuple(3 + group for group in range(world))


def filled(x: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
    """A rank's message [groups * most, H] of its rows [T, H] of all groups, each group's filled up with zeros."""
    most = max(rows)
    return torch.cat([torch.nn.functional.pad(part, (0, 0, 0, most - len(part))) for part in x.split(rows)])


def padded(collective: Collective, inputs: Sequence[torch.Tensor], rows: tuple[int, ...]) -> list[torch.Tensor]:
    """Each group's rows by the reduce-scatter of the same library and algorithm."""
    scatter = scattering(collective)
    assert scatter is not None
    shares = reduce_scatter(scatter, [filled(x, rows) for x in inputs])
    return [share[:count] for share, count in zip(shares, rows, strict=True)]


def sliced(collective: Collective, inputs: Sequence[torch.Tensor], rows: tuple[int, ...]) -> list[torch.Tensor]:
    """Each group's rows out of an all-reduce of all."""
    return list(all_reduce(collective, inputs)[0].split(rows))


def reduced(collective: Collective, inputs: Sequence[torch.Tensor], rows: tuple[int, ...]) -> list[torch.Tensor]:
    """Each group's rows by a reduce of their own, which gloo adds as an all-reduce of them alone."""
    parts = [x.split(rows) for x in inputs]
    return [all_reduce(collective, [part[group] for part in parts])[0] for group in range(len(rows))]


WAYS = {"sliced": sliced, "padded": padded, "reduced": reduced}
