"""DeepEP's combine: the unweighted partial sums of a token from all ranks are added on the rank the token came from.

Only ranks with one of a token's experts send anything. The others count as +0 here, which changes no sum that starts
from +0. The low-latency kernel sends rows instead of partial sums: that is `combine` with `sequential(fma)` in fp32 and
no ranks. The elastic kernel adds by first slot: `combine:partials`, then the sum of `deepep.intranode`.
"""

from __future__ import annotations

from moeparity.numerics.collectives.declaration import Collective, Evidence
from moeparity.numerics.order_map import ASCENDING, EveryPart, OrderMap, Whole
from moeparity.numerics.orders import AnyTree, Sum

NODE = 8
"""How many ranks are joined by NVLink."""


def by_node(ranks: int) -> AnyTree:
    """The ranks of a node in ascending order, their sum rounded to bf16; then the nodes in ascending order."""
    nodes = [range(first, first + NODE) for first in range(0, ranks, NODE)]
    sums: list[AnyTree] = [Sum(children=tuple(node), round="bf16", zero=True) for node in nodes]
    return sums[0] if len(sums) == 1 else tuple(sums)


INTRANODE = Collective(
    "deepep.intranode",
    OrderMap(Whole(), ASCENDING, "fp32", from_zero=True),
    Evidence("read", "DeepEP dd758caf45: csrc/kernels/legacy/intranode.cu, no bias"),
    by_token=True,
    worlds=tuple(range(2, NODE + 1)),
    dtypes=("bf16",),
)
INTERNODE = Collective(
    "deepep.internode",
    OrderMap(Whole(), EveryPart("by_node", by_node), "fp32", from_zero=True),
    Evidence("read", "DeepEP dd758caf45: csrc/kernels/legacy/internode.cu combine_token, 8 ranks a node, no bias"),
    by_token=True,
    worlds=tuple(range(2 * NODE, 20 * NODE + 1, NODE)),
    dtypes=("bf16",),
)

ALL = (INTRANODE, INTERNODE)
