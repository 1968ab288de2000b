"""Faults of tokens and steps, in programs of transformers: what a side says that read or computed them otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tests.doctor.programs import Patch, scored


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


def routes_of(checkpoint: Path, ids: Tensor) -> Tensor:
    """What a program routes: int64 [B, T, MoE layers, K]."""
    model, experts = _model(checkpoint), list[Tensor]()
    for router in routers(model):
        router.register_forward_hook(lambda _, __, outputs: experts.append(outputs[2].view(*ids.shape, -1)))
    with torch.no_grad():
        model(ids, use_cache=False)
    return torch.stack(experts, 2)


def replaying(routes: Tensor, *, by_slot: bool = False) -> Patch:
    """Routers that take over experts, int64 [B, T, layers, K], and weigh them by their own scores; -1: their own.

    by_slot: the weights stay those of the routers' own experts, slot by slot.
    """

    def patch(model: Any) -> None:
        rows = [0] * len(model.model.layers)

        def replay(layer: int, router: Any, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            logits, weights, experts = outputs
            count = len(experts) // routes.shape[1]
            theirs = routes[rows[layer] : rows[layer] + count, :, layer].flatten(0, 1)
            rows[layer] += count
            experts = torch.where(theirs >= 0, theirs, experts)
            chosen = torch.softmax(logits.float(), -1).gather(-1, experts)
            scores = chosen / chosen.sum(-1, keepdim=True) if router.norm_topk_prob else chosen
            return logits, weights if by_slot else scores.to(weights.dtype), experts

        for number, layer in enumerate(model.model.layers):
            layer.mlp.gate.register_forward_hook(lambda router, _, outputs, at=number: replay(at, router, outputs))

    return patch


def dropping(capacity: int) -> Patch:
    """Experts that take so many tokens of a batch, and drop all behind them."""

    def drop(router: Any, _: Any, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        logits, weights, experts = outputs
        chosen = torch.nn.functional.one_hot(experts.flatten(), router.num_experts)
        before = (chosen.cumsum(0) - chosen).gather(1, experts.flatten()[:, None]).view(experts.shape)
        return logits, torch.where(before < capacity, weights, 0), experts

    def patch(model: Any) -> None:
        for router in routers(model):
            router.register_forward_hook(drop)

    return patch


def routers(model: Any) -> list[Any]:
    """The routers of all layers that have one."""
    return [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]


def renormalised(model: Any) -> None:
    """Scores of the chosen experts renormalised where they must not be, or the other way round."""
    for router in routers(model):
        router.norm_topk_prob = not router.norm_topk_prob


def tied(model: Any) -> None:
    """The embedding as the head."""
    model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.detach().clone())


@torch.no_grad()
def decoded_otherwise(checkpoint: Path, ids: Tensor, prompt: int, patch: Patch) -> Tensor:
    """The prompt by a right program, the response behind its keys and values by a patched one."""
    right, wrong = _model(checkpoint), _model(checkpoint)
    patch(wrong)
    rows = []
    for part in ids.split(4):
        before = right(part[:, :prompt], use_cache=True)
        behind = wrong(part[:, prompt:], past_key_values=before.past_key_values)
        rows.append(_of_next(torch.cat([before.logits, behind.logits], 1), part))
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
