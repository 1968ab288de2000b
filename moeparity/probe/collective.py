"""The collectives of torch.distributed as functions that can be probed, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist

from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.numerics.collectives import of_job
from moeparity.probe.calls import Setup
from moeparity.probe.target import KINDS, Function


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """x [E] summed over the job's ranks by its backend -> [E]."""
    return of_job.all_reduce(_on_backend(x)).to(x.device)


def reduce_scatter_tensor(x: torch.Tensor) -> torch.Tensor:
    """x [E] summed by a reduce-scatter whose parts are put together again -> [E]. E has to divide by the number of
    ranks.
    """
    return torch.cat(of_job.reduce_scatter(_on_backend(x))).to(x.device)


def _on_backend(x: torch.Tensor) -> torch.Tensor:
    return x.cuda() if dist.get_backend() == "nccl" else x


COLLECTIVES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all_reduce": all_reduce,
    "reduce_scatter_tensor": reduce_scatter_tensor,
}
"""By their names in torch.distributed."""


def collective(name: str) -> Function:
    """The collective of this name as a function to probe. Raises MoeparityError for an unknown name."""
    if name not in COLLECTIVES:
        raise MoeparityError(
            f"--collective {name}: expected one of {listed(COLLECTIVES)}.{did_you_mean(name, COLLECTIVES)}"
        )
    call = COLLECTIVES[name]
    return Function(f"torch.distributed.{name}", call, KINDS["all_reduce"], scatters=call is reduce_scatter_tensor)


def in_job(name: str, dtype: torch.dtype, elements: int) -> tuple[Function, list[Setup]]:
    """A collective of the current job as a function to probe, with a setup for messages of this many elements."""
    setup = Setup(n=dist.get_world_size(), dtype=dtype, m=KINDS["all_reduce"].m, width=elements)
    return collective(name), [setup]
