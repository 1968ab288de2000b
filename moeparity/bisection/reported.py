"""What a walker reports of the tokens: its log-probabilities, or the logits that they are made of."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from moeparity.engine.view import NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.tokens import TokenMetrics, token_metrics
from moeparity.ops.log_softmax import UNROUNDED


def seen_metrics(
    view: NodeView,
    reference: Name,
    candidate: Name,
    input_ids: Tensor,
    loss_mask: Tensor,
    sampled_from: Literal["candidate", "reference"],
) -> TokenMetrics:
    """`token_metrics` of two walkers, from a view of the node that log-probabilities are read from."""
    return token_metrics(
        view.tensor(reference),
        view.tensor(candidate),
        input_ids,
        loss_mask,
        sampled_from=sampled_from,
        reported=(reports(view, reference), reports(view, candidate)),
    )


def reports(view: NodeView, walker: Name) -> bool:
    """Whether a walker's values here are log-probabilities as it reports them, and no logits."""
    if not view.node.op.reports:
        return False
    return walker in view.regions or view.active[walker]["form"] != UNROUNDED
