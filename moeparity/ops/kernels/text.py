"""What a sampler knows beside logits: the tokens before each row, and what its request asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """What a request asks of a sampler by token ids.

    biases: ids, and what is added to the logit of the last one where the text ends with those before it.
    bad_words: ids of which the last one is left out where the text ends with those before it.
    allowed: the only ids that are kept; all if empty.
    min_tokens: how many tokens of output there have to be before one of `stop_ids` is kept.
    grammar: by number of a token in its sequence, the ids that may stand there: int32 [W], bit i % 32 of word i // 32,
        as xgrammar packs them. An id without a bit may not. A token without an entry may be any.
    """

    biases: tuple[tuple[tuple[int, ...], float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed: tuple[int, ...] = ()
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    grammar: Mapping[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The tokens before each row of logits, its own included, along a last axis N, as far as there are some.

    ids: int64 [B, T, N]. before: bool [B, T, N], which of them stand there; others are padding or come later. output:
    likewise, those behind the prompt; None if it is not known which tokens are prompt. sequences: int64 [B, T], the
    sequence of each row. requests: that of each sequence; empty if none is known.
    """

    ids: torch.Tensor
    before: torch.Tensor
    output: torch.Tensor | None
    sequences: torch.Tensor | None = None
    requests: Sequence[SamplingRequest] = ()
