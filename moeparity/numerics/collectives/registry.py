"""All collectives by name, and the tables that choose among them. NCCL's are listed with one channel on one node."""

from __future__ import annotations

from moeparity.errors import did_you_mean, listed
from moeparity.numerics.collectives import deepep, gloo, mpi, nccl, nccl_pat
from moeparity.numerics.collectives import inference_engines as engines
from moeparity.numerics.collectives.declaration import Collective
from moeparity.numerics.order_map import Message, Selection

COLLECTIVES: dict[str, Collective] = {
    collective.name: collective for module in (gloo, mpi, nccl, nccl_pat, engines, deepep) for collective in module.ALL
}

SELECTIONS: dict[str, Selection] = {table.name: table for table in (mpi.RING_TABLE, *engines.TABLES)}


def find(name: str, message: Message) -> Collective:
    """The collective called `name`, or the one that the table `name` chooses for `message`.

    Raises ValueError for an unknown name, and if no row of the table holds.
    """
    choice = SELECTIONS[name].choose(message) if name in SELECTIONS else name
    if choice not in COLLECTIVES:
        names = (*SELECTIONS, *COLLECTIVES)
        raise ValueError(f"unknown collective {name!r}.{did_you_mean(name, names)} Known: {listed(names)}")
    return COLLECTIVES[choice]


def scattering(collective: Collective) -> Collective | None:
    """The reduce-scatter of the same library and algorithm; the collective itself if it is one or goes by token; None
    if none is known.
    """
    if collective.scatters or collective.by_token:
        return collective
    return COLLECTIVES.get(_SCATTERING.get(collective.name, ""))


_SCATTERING = {
    gloo.ALL_REDUCE.name: gloo.REDUCE_SCATTER_TENSOR.name,
    nccl.RING.name: nccl.RING_REDUCE_SCATTER.name,
}
