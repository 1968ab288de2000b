"""Pairs of sequences, chosen and rejected, for a checkpoint whose head gives scores."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moeparity.errors import TokensError, Where, counted
from moeparity.inputs.tokens.tokenset import TokenSet, predicted_mask
from moeparity.metrics.tokens import first_occurrences
from moeparity.plan.graph import Graph


def paired(tokens: TokenSet, graph: Graph, where: Where) -> TokenSet:
    """The tokens as a graph scores them: unchanged for a language model; for a head that gives scores sequences 2i and
    2i + 1 are a pair, chosen and rejected, and scored at the last token of the chosen one.

    Raises TokensError for pairs without such a head; for a head without pairs; for records of log-probabilities; and
    for a sequence whose last token engines do not agree on, or that has no other.
    """
    if not graph.pairs:
        if tokens.pairs:
            raise TokensError(
                f"{where}: holds pairs, 'chosen' and 'rejected', and the checkpoint gives no scores: its config.json "
                "names no *ForSequenceClassification under `architectures`. Expected 'text' or 'input_ids'."
            )
        return tokens
    count = len(tokens.input_ids)
    if count % 2:
        raise TokensError(
            f"{where}: {counted(count, 'sequence')}; the checkpoint gives scores, so that sequences 0 and 1, 2 and 3, "
            "and so on are pairs, the chosen one first. Expected an even number."
        )
    if tokens.logprobs is not None or tokens.trainer_logprobs is not None or tokens.labels is not None:
        raise TokensError(
            f"{where}: has log-probabilities or labels of tokens, and the checkpoint gives one score for each "
            "sequence. Leave them out."
        )
    last = torch.zeros_like(tokens.attention_mask)
    places = torch.arange(count), (torch.arange(last.shape[1]) * tokens.attention_mask).argmax(-1)
    last[places] = True
    _refuse_ends(tokens, graph, last, where)
    last[1::2] = False
    return replace(tokens, loss_mask=last)


def _refuse_ends(tokens: TokenSet, graph: Graph, last: Tensor, where: Where) -> None:
    """Raises TokensError for a last token that is a pad to transformers, or before which no other stands."""
    pad = graph.config.get("pad_token_id")
    if pad is not None and bool((pads := (tokens.input_ids == pad) & last).any()):
        row = int(pads.any(1).int().argmax())
        raise TokensError(
            f"{where}: sequence {row} ends with token {pad}, the pad_token_id of config.json: transformers reads its "
            "score at the token before, vLLM at this one. Leave the token out for the first, or give the checkpoint "
            "another pad_token_id for the second."
        )
    alone = last & ~predicted_mask(tokens.attention_mask)
    if bool(alone.any()):
        row = int(alone.any(1).int().argmax())
        raise TokensError(f"{where}: sequence {row} has one token; expected at least two in each of a pair.")


def first_pairs(tokens: TokenSet) -> Tensor:
    """int64 [B]: for each sequence, that at its place in the first pair of the same two sequences."""
    ids, mask = (block.reshape(len(block) // 2, -1) for block in (tokens.input_ids, tokens.attention_mask))
    first = 2 * first_occurrences(ids, mask)
    return torch.stack([first, first + 1], 1).flatten()
