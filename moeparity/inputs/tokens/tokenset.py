"""`TokenSet`, into which every token file is read, and the checks that no file format needs of its own: masks,
records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.images import Images
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.plan.graph import Graph

_FEWEST = 2  # tokens that may be the same by chance
LARGEST_LOGPROB = 1e-2
"""In nats. Rounding can lift the log of a probability near 1 above 0, but not this far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """Sequences as one block. Everything about token i is at index i.

    input_ids: int64 [B, T].
    loss_mask: bool [B, T], True if the token's log-probability counts. Never True at a pad or at the first token of a
        sequence, which nothing predicts.
    attention_mask: bool [B, T], False at pads.
    labels: int64 [B, T], the class of each token as an index into `label_names`; None if the file has no classes.
    logprobs: fp64 [B, T], in nats: log P(token i | tokens before i) as an engine recorded it, NaN if it did not.
    trainer_logprobs: as `logprobs`, as the engine that did not sample recorded them when it scored the tokens.
    routed_experts: int64 [B, T, MoE layers, top_k], the experts to which the engine sent token i, -1 if not recorded.
    pairs: the file says that sequences 2i and 2i + 1 are a pair, chosen and rejected.
    images: what a vision tower gave for the images among the tokens; None if there are none.
    requests: what the request of each sequence asked of its sampler by token ids; empty if the file does not say it.
    """

    input_ids: Tensor
    loss_mask: Tensor
    attention_mask: Tensor
    labels: Tensor | None = None
    label_names: tuple[str, ...] = ()
    logprobs: Tensor | None = None
    trainer_logprobs: Tensor | None = None
    routed_experts: Tensor | None = None
    pairs: bool = False
    images: Images | None = None
    requests: tuple[SamplingRequest, ...] = ()

    @property
    def told_apart(self) -> Tensor:
        """int64 [B, T]: the ids, with other numbers at tokens of images, which have one id whatever they show."""
        return self.input_ids if self.images is None else self.images.told_apart(self.input_ids)

    @property
    def pads(self) -> int:
        """How many positions are padding."""
        return int((~self.attention_mask).sum())

    @property
    def constant_sequences(self) -> int:
        """How many sequences of at least three tokens have one id only."""
        low = torch.where(self.attention_mask, self.input_ids, self.input_ids.max()).amin(1)
        high = torch.where(self.attention_mask, self.input_ids, -1).amax(1)
        return int(((low == high) & (self.attention_mask.sum(1) > _FEWEST)).sum())

    @property
    def recorded(self) -> Tensor:
        """The scored tokens that have a log-probability recorded by the engine that sampled: bool [B, T]."""
        return self._scored(self.logprobs)

    @property
    def recorded_by_trainer(self) -> Tensor:
        """The scored tokens that have a log-probability recorded by the other engine: bool [B, T]."""
        return self._scored(self.trainer_logprobs)

    def _scored(self, logprobs: Tensor | None) -> Tensor:
        return torch.zeros_like(self.loss_mask) if logprobs is None else self.loss_mask & ~logprobs.isnan()

    @property
    def has_records(self) -> bool:
        """Whether an engine's log-probabilities or routes were recorded."""
        return any(record is not None for record in (self.logprobs, self.trainer_logprobs, self.routed_experts))


def defect(mask: Tensor) -> str | None:
    """Why `mask` (bool [B, T]) is not padding, naming the first such sequence; None if each is padded at its ends.

    Trainers pad prompts on the left and completions on the right. transformers defines what happens with holes inside a
    sequence too, but nobody trains or serves that.
    """
    begins = mask[:, 1:] & ~mask[:, :-1]
    broken = begins.sum(dim=1) + mask[:, 0] > 1
    empty = ~mask.any(dim=1)
    bad = broken | empty
    if not bool(bad.any()):
        return None
    row = int(bad.int().argmax())
    if bool(empty[row]):
        return f"sequence {row} is padding only; leave it out"
    return f"sequence {row} has zeros between its tokens: expected them at its ends alone"


def scored_mask(loss_mask: Tensor, mask: Tensor) -> Tensor:
    """The tokens of `loss_mask` that are real and follow a real token, whose logits give their log-probability.

    All are bool [B, T]. The first column is left as it is; nothing stands before it, so it is never scored.
    """
    scorable = loss_mask & mask
    scorable[:, 1:] &= mask[:, :-1]
    return scorable


def predicted_mask(attention_mask: Tensor) -> Tensor:
    """bool [B, T]: tokens before which another token of their sequence stands."""
    mask = scored_mask(torch.ones_like(attention_mask), attention_mask)
    mask[:, 0] = False
    return mask


def check_logprobs(where: Where, key: str, logprobs: Tensor) -> None:
    """Raises TokensError for a number under `key` that can't be a log-probability; NaN stands for none."""
    bad = logprobs[(logprobs > LARGEST_LOGPROB) | logprobs.isinf()]
    if bad.numel():
        raise TokensError(
            f"{where}: {key} holds {float(bad[0]):g}; expected log-probabilities in nats, which are at most 0."
        )


def nested_routes(where: Where, rows: list[Any]) -> Tensor:
    """Routes written as nested lists -> int64 [tokens, MoE layers, top_k]; null (no record) becomes -1.

    Raises TokensError.
    """
    try:
        records = torch.tensor([row for row in rows if row is not None])
    except (ValueError, TypeError, RuntimeError, OverflowError):
        records = torch.empty(0)
    if records.dim() != 3 or records.dtype != torch.int64 or not records.numel():
        raise TokensError(
            f"{where}: routed_experts is not [tokens][MoE layers][top_k] of whole numbers; a token without a record is "
            "null, and dense layers are left out."
        )
    routes = torch.full((len(rows), *records.shape[1:]), -1)
    routes[torch.tensor([row is not None for row in rows])] = records
    return routes


def routed_layers(where: Where, routes: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Routes [tokens, layers, top_k] without layers that have no router, and the indices of the remaining layers.

    SGLang and vLLM record every layer of the model, and leave zeros for dense layers (sglang
    srt/state_capturer/routed_experts.py; vLLM routed_experts_capturer.py, as of 2026-09). With more than one expert per
    token no router gives these. With one, a router may always pick expert 0, so all layers are kept.
    Raises TokensError if every id is 0.
    """
    dense = (routes <= 0).all(-1).all(0) & (routes == 0).any(-1).any(0)
    if routes.shape[-1] == 1 or not bool(dense.any()):
        return routes, tuple(range(routes.shape[1]))
    if bool(dense.all()):
        raise TokensError(
            f"{where}: every id of routed_experts is 0: nothing was recorded. Check the engine's capture."
        )
    return routes[:, ~dense], tuple((~dense).nonzero().flatten().tolist())


def check_routes(where: Where, routes: Tensor) -> None:
    """Raises TokensError unless the last axis holds different expert ids, or -1 alone."""
    ids = routes.sort(-1).values
    repeated = (ids[..., 1:] == ids[..., :-1]).any(-1)
    bad = torch.where(routes.eq(-1).all(-1), False, repeated | (routes < 0).any(-1))
    if bool(bad.any()):
        example = routes[bad][0]
        of_zeros = " Where the engine recorded nothing, expected is null or -1; a replay of zeros is one of expert 0."
        hint = "" if bool(example.any()) else of_zeros
        raise TokensError(
            f"{where}: routed_experts sends a token to {example.tolist()}; expected different experts by number.{hint}"
        )


def check_fits(tokens: TokenSet, graph: Graph, where: Where) -> None:
    """Raises TokensError unless the recorded routes have the model's MoE layers, its top_k and its experts."""
    if tokens.routed_experts is None:
        return
    routers = [node for node in graph.nodes if node.op.role.routes]
    experts = max((node.params["experts"] for node in routers), default=0)
    model_shape = [len(routers), routers[0].params["top_k"] if routers else 0]
    file_shape = list(tokens.routed_experts.shape[2:])
    if file_shape != model_shape:
        dense = f" Leave out the {graph.layers - len(routers)} dense layers." if file_shape[0] == graph.layers else ""
        raise TokensError(
            f"{where}: routed_experts holds {file_shape[0]} layers of {file_shape[1]} experts per token; the model has "
            f"{model_shape[0]} MoE layers, top {model_shape[1]}.{dense}"
        )
    largest = int(tokens.routed_experts.max())
    if largest >= experts:
        raise TokensError(
            f"{where}: routed_experts names expert {largest}; the model has experts 0..{experts - 1}. Record logical "
            "experts, not the physical places a load balancer gave them."
        )
