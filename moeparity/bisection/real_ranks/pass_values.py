"""What is kept of a pass on real ranks, or on the simulated ones that it is held to."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256

import torch

from moeparity.engine.live_ranks import LiveRanks, Reduction
from moeparity.engine.values import Block
from moeparity.engine.view import NodeView


class Values:
    """Digests of the values of a side at every node, and of each node what was reduced there.

    of_node: by node and wave. Partial sums are left out: a rank has its own only, and what they add up to is compared.
    """

    def __init__(self, side: str, live: LiveRanks | None = None) -> None:
        self.side, self.live = side, live
        self.of_node: dict[tuple[str, tuple[int, int]], str] = {}
        self.reductions: dict[str, list[Reduction]] = defaultdict(list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if self.live is not None:
            self.reductions[view.node.name] += self.live.take()
        if not view.ran(self.side):
            return
        whole = [block for port in view.outputs[self.side] for block in port if block.partials == 1]
        if whole:
            self.of_node[view.node.name, view.wave] = _digest(whole)


def _digest(blocks: list[Block]) -> str:
    digest = sha256()
    for block in blocks:
        tensor = block.tensor.detach().cpu().contiguous()
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
