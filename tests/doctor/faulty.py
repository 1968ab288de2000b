"""Faults of tokens and steps, in programs of transformers: what a side says that read or computed them otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.doctor.programs import scored


def _model(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16, attn_implementation="sdpa").eval()


def _of_next(logits: Tensor, ids: Tensor) -> Tensor:
    """log P of each token but the first: fp32 [B, T - 1] in nats."""
    return torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def without_first(checkpoint: Path, ids: Tensor, count: int) -> Tensor:
    """The first tokens left off; of these and of the one behind them the right values."""
    rest = ids[:, count:]
    return torch.cat([scored(checkpoint, ids, 4)[:, :count], _of_next(_model(checkpoint)(rest).logits, rest)], 1)


@torch.no_grad()
def first_twice(checkpoint: Path, ids: Tensor) -> Tensor:
    """A BOS that the template adds to one that is there."""
    more = torch.cat([ids[:, :1], ids], 1)
    return _of_next(_model(checkpoint)(more).logits, more)[:, 1:]


@torch.no_grad()
def packed(checkpoint: Path, ids: Tensor, count: int) -> Tensor:
    """Packs in which each sequence sees those before it, with positions that run on."""
    model, length = _model(checkpoint), ids.shape[1]
    rows: list[Tensor] = []
    for pack in ids.split(count):
        row = pack.reshape(1, -1)
        values = _of_next(model(row).logits, row)[0]
        rows += [values[at * length : at * length + length - 1] for at in range(len(pack))]
    return torch.stack(rows)


@torch.no_grad()
def older_prompt(checkpoint: Path, previous: Path, ids: Tensor, prompt: int) -> Tensor:
    """Keys and values of the prompt that other weights computed."""
    model, before = _model(checkpoint), _model(previous)
    rows = []
    for part in ids.split(4):
        old = before(part[:, :prompt], use_cache=True)
        new = model(part[:, prompt:], past_key_values=old.past_key_values)
        rows.append(_of_next(torch.cat([old.logits, new.logits], 1), part))
    return torch.cat(rows)


@torch.no_grad()
def moved_response(checkpoint: Path, ids: Tensor, prompt: int, by: int) -> Tensor:
    """Positions of the response counted otherwise."""
    places = torch.arange(ids.shape[1])
    places = torch.where(places >= prompt, places + by, places)[None].expand(len(ids), -1)
    return _of_next(_model(checkpoint)(ids, position_ids=places).logits, ids)


@torch.no_grad()
def cut_to(checkpoint: Path, ids: Tensor, top_k: int) -> Tensor:
    """Renormalised over the likeliest tokens, and the sampled one."""
    logprobs = torch.log_softmax(_model(checkpoint)(ids).logits[:, :-1].float(), -1)
    chosen = logprobs.gather(-1, ids[:, 1:, None])
    least = torch.minimum(logprobs.topk(top_k, -1).values[..., -1:], chosen)
    mass = torch.where(logprobs >= least, logprobs, -torch.inf).logsumexp(-1, keepdim=True)
    return (chosen - mass).squeeze(-1)
