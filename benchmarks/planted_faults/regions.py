"""Functions in place of several nodes, made of those in `plain`. Free of moeparity.

Their keywords are nodes, each with the keywords of its own function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from benchmarks.planted_faults import plain

Own = Mapping[str, Any]


def moe(x: Tensor, *rest: Tensor, node: Any, **settings: Own) -> Tensor:
    """A region: gate, router, experts and combine."""
    logits = F.linear(x, node.weights["gate.weight"])
    ids, weights = plain.router(logits, node=node, **settings.get("router", {}))
    rows = plain.experts(x, ids, node=node, **settings.get("experts", {}))
    return plain.combine(rows, ids, weights, node=node, **settings.get("combine", {}))


def mixer(x: Tensor, ids: Tensor, weights: Tensor, *rest: Tensor, node: Any, **settings: Own) -> Tensor:
    """A region: experts and combine."""
    rows = plain.experts(x, ids, node=node, **settings.get("experts", {}))
    return plain.combine(rows, ids, weights, node=node, **settings.get("combine", {}))


def attention(x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, *, node: Any, **settings: Own) -> Tensor:
    """A region: the projections, the norms of heads where there are any, rope, attention and the output projection."""
    q, k, v = (plain.linear(x, node=node, name=f"{i}_proj", **settings.get(f"{i}_proj", {})) for i in "qkv")
    if "q_norm" in node.params:
        q, k = (plain.norm(y, node=node, name=n, **settings.get(n, {})) for y, n in ((q, "q_norm"), (k, "k_norm")))
    q, k = plain.rope(q, k, cos, sin, node=node, **settings.get("rope", {}))
    y = plain.attend(q, k, v.transpose(1, 2), mask, node=node, **settings.get("attend", {}))
    return plain.linear(y, node=node, name="o_proj", **settings.get("o_proj", {}))


def ending(x: Tensor, *, node: Any, **settings: Own) -> Tensor:
    """A region: the last norm and the head."""
    return plain.head(
        plain.norm(x, node=node, name="norm", **settings.get("norm", {})), node=node, **settings.get("lm_head", {})
    )
