"""Rankings by case: each token's selection scores are those of the case in which its own step is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from moeparity.bisection.flips.observe import Ranking, selected
from moeparity.engine.view import NodeView
from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.router import selection

P = {"score": "softmax", "top_k": 2, "groups": 1, "top_groups": 1, "renormalize": True, "scale": 1.0}


def test_each_token_is_ranked_as_its_case_says() -> None:
    at = {"timing": "before_topk", "softmax": "native", "scores": torch.float32, "rank_on": "scores", "math": "exact"}
    of = {
        "prefill": Ranking(w={}, p=P, at=at),
        "decode[rows :3]": Ranking(w={}, p=P, at={**at, "scores": torch.bfloat16}),
        "decode[rows 3:]": Ranking(w={}, p=P, at=at),
    }
    masks = {case: torch.zeros(2, 3, dtype=torch.bool) for case in of}
    masks["prefill"][:, 0], masks["decode[rows :3]"][:, 1], masks["decode[rows 3:]"][:, 2] = True, True, True
    view = cast("NodeView", SimpleNamespace(tokens_by_case=lambda walker, cases: masks if cases is of else walker))
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    every, in_groups = selected(view, "candidate", of, logits)
    for place, case in enumerate(of):
        ranking: Any = of[case]
        for scores, own_scores in zip((every, in_groups), selection(logits, w={}, p=P, at=ranking.at), strict=True):
            assert same_bits(scores[:, place], own_scores[:, place].to(scores.dtype)), case
    assert not same_bits(every[:, 1], selection(logits, w={}, p=P, at=at)[0][:, 1])
