"""The tokens of a case by prompt and response, and the same sequences with other tokens in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from moeparity.doctor.readings import Cut, Prompts
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.token_grid import TokenGrid


def prompts_of(tokens: TokenSet) -> Prompts:
    """The prompt of a sequence ends at its first scored token."""
    mask, scored = tokens.attention_mask.cpu(), tokens.loss_mask.cpu()
    spans, prompts = [], []
    for row, of_row in zip(mask, scored, strict=True):
        places = row.nonzero()[:, 0]
        first, last = int(places[0]), int(places[-1]) + 1
        begun = of_row.nonzero()[:, 0]
        spans.append((first, last))
        prompts.append(max(1, int(begun[0]) - first) if begun.numel() else last - first)
    return Prompts(TokenGrid(spans=tuple(spans), prompts=tuple(prompts), length=mask.shape[1]))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Sequences with other tokens in them. tokens: [B, T']. scored: bool [N], which of the scored tokens still have a
    token before them; their order is that of `tokens`.
    """

    tokens: TokenSet
    scored: Tensor


def rewritten(tokens: TokenSet, sources: Sequence[Sequence[int]], prompts: Prompts) -> Rewritten:
    """Sequences made of the tokens at `sources`, each a list of places from a sequence's first token on. A token that
    stands there twice is scored at its last place.
    """
    length = max(map(len, sources))
    device = tokens.input_ids.device
    ids = torch.zeros(len(sources), length, dtype=torch.int64, device=device)
    real, mask = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    is_scored: list[Tensor] = []
    for row, (places, (first, last)) in enumerate(zip(sources, prompts.grid.spans, strict=True)):
        ids[row, : len(places)] = tokens.input_ids[row, first:last][list(places)]
        real[row, : len(places)] = True
        at = {place: index for index, place in enumerate(places)}
        scored = (tokens.loss_mask[row].nonzero()[:, 0] - first).tolist()
        is_scored.append(torch.tensor([at.get(place, 0) > 0 for place in scored], dtype=torch.bool))
        mask[row, [at[place] for place in scored if at.get(place, 0) > 0]] = True
    return Rewritten(replace(tokens, input_ids=ids, loss_mask=mask, attention_mask=real), torch.cat(is_scored))


def shifted(values: Tensor, by: int, sequence: Tensor) -> Tensor:
    """For each token the value of the token `by` places after it in its sequence; its own value if there is none.
    values: [N], of the scored tokens in order; sequence: int64 [N].
    """
    places = torch.arange(values.numel())
    others = (places + by).clamp(0, values.numel() - 1)
    there = (sequence[others] == sequence) & (others == places + by)
    return torch.where(there, values[others], values)


def kept_mass(log_probs: Tensor, chosen: Tensor, cuts: Mapping[str, Cut]) -> dict[str, Tensor]:
    """The log of the mass that each cut keeps, fp64 [n] in nats; the chosen token is always kept.

    log_probs: fp64 [n, V]. chosen: fp64 [n], log P of the chosen token. top_p keeps the fewest likeliest tokens of that
    mass, as vLLM and transformers do.
    """
    ordered = log_probs.sort(-1, descending=True).values
    mass = ordered.exp()
    above = mass.cumsum(-1) - mass
    masses: dict[str, Tensor] = {}
    for name, cut in cuts.items():
        by, value = cut.by, cut.value
        if by == "top_k":
            rule = torch.arange(ordered.shape[-1], device=ordered.device).expand_as(ordered) < int(value)
        elif by == "top_p":
            rule = above < value
        else:
            rule = mass >= value * mass[:, :1]
        masses[name] = torch.where(rule | (ordered >= chosen[:, None]), mass, 0.0).sum(-1).log()
    return masses
