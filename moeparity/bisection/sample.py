"""Prompts continued by one side of a recipe, with that side's own numerics, before the run.

Every new token costs a forward pass over all prompts and what was generated so far: there is no key/value cache, so
the numerics are those of prefill, as in the run itself. Nothing stops at an end-of-sequence token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.bisection.prepare import Plan
from moeparity.bisection.trials import walker
from moeparity.engine.duration import FASTEST, require_time
from moeparity.engine.footprint import estimate, require
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.errors import SpecError, TokensError, Where
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.weights.store import WeightStore, fits
from moeparity.plan.schedule.settings import described
from moeparity.plan.sides import Side
from moeparity.plan.spec.schema import Sample
from moeparity.progress import Callback, Progress

NAME = "sampler"
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Ids [B, T] int64, attention mask [B, T] bool, position of each sequence's last token [B] -> its logits [B, V]."""


def generate(plan: Plan, *, progress: Callback | None = None) -> Plan:
    """The plan with its prompts continued where the recipe has `tokens.sample`; else the plan itself.

    Weights stay in memory between the forwards where they take at most half of what is free; else each forward streams
    them. Raises TokensError where the logits to sample from are not finite, SpecError where a side's schedule is
    more than a micro-batch, MoeparityError where memory is too small.
    """
    sample = plan.recipe.tokens.sample
    if sample is None:
        return plan
    side = plan.candidate if sample.source == "candidate" else plan.reference
    for own in (plan.reference, plan.candidate):
        if not own.schedule.is_plain:
            # Both are bound for the prompts' steps: none has the new tokens.
            raise SpecError(
                f"{Where(plan.path, plan.recipe.tokens.line_of('sample'))}: sampling goes by forwards of whole "
                f"sequences, and one side's schedule is {described(own.schedule)}. Sample in a recipe whose sides have "
                "a `micro_batch`, and give what it sampled as a file."
            )
    forward = _forward(plan, side)

    def step(ids: Tensor, mask: Tensor, last_positions: Tensor) -> Tensor:
        logits = forward(ids, mask, last_positions)
        if not bool(logits.isfinite().all()):
            raise TokensError(
                f"{Where(plan.path, plan.recipe.tokens.line_of('sample'))}: the {sample.source}'s logits hold NaN or "
                "infinity, so nothing can be sampled from it."
            )
        return logits

    return plan.on(continued(plan.tokens, sample, step, progress))


def required_sample(plan: Plan) -> Sample:
    """What a plan is to sample. Raises SpecError where its recipe does not ask for any."""
    sample = plan.recipe.tokens.sample
    if sample is None:
        where = Where(plan.path, plan.recipe.line_of("tokens"))
        raise SpecError(f"{where}: tokens has no `sample:`, so there is nothing to generate. Add it, or run `bisect`.")
    return sample


def continued(tokens: TokenSet, sample: Sample, forward: Forward, progress: Callback | None = None) -> TokenSet:
    """`sample.new_tokens` more tokens after each sequence's last; only these are scored, under the last one's label.

    Sequences padded on the right go on where they end, over their pads. At temperature 0 the token is the greatest
    logit, the lowest id among equals. Else it is the first id at which the cumulative softmax of logits / temperature,
    in fp64, exceeds u times its total; u comes from one table [sequences, new_tokens], uniform in [0, 1), which
    torch.rand fills in fp64 on the CPU from the seed. So the draws do not depend on the order of the computation.
    """
    mask = tokens.attention_mask
    positions = torch.arange(mask.shape[1]).expand_as(mask)
    ends = positions.masked_fill(~mask, -1).amax(1) + 1
    width, rows = int(ends.max()), torch.arange(len(ends))
    pads = tokens.input_ids[~mask]
    ids = _widened(tokens.input_ids, width, sample.new_tokens, int(pads[0]) if len(pads) else 0)
    mask = _widened(mask, width, sample.new_tokens, False)
    new_mask = torch.zeros_like(mask)
    uniform = torch.rand(
        len(ids), sample.new_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(sample.seed)
    )
    for step in range(sample.new_tokens):
        prefix = slice(0, width + step)
        logits = forward(ids[:, prefix], mask[:, prefix], ends + step - 1)
        cells = rows, ends + step
        ids[cells] = draw(logits.double(), sample.temperature, uniform[:, step])
        mask[cells], new_mask[cells] = True, True
        if progress is not None:
            progress(_progress(step + 1, sample.new_tokens, len(ids)))
    labels = None
    if tokens.labels is not None:
        last_labels = tokens.labels[rows, ends - 1]
        labels = torch.where(new_mask, last_labels[:, None], _widened(tokens.labels, width, sample.new_tokens, 0))
    return TokenSet(
        input_ids=ids, loss_mask=new_mask, attention_mask=mask, labels=labels, label_names=tokens.label_names
    )


def _progress(count: int, total: int, sequences: int) -> Progress:
    """After so many of all new tokens of each sequence."""
    return Progress(
        step="sampling",
        at=f"token {count} of {total}",
        done=count,
        total=total,
        work=count * sequences,
        unit="tokens",
    )


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """One token per row of logits [B, V] fp64, on the CPU; uniform [B] fp64 in [0, 1). int64 [B]."""
    if temperature == 0:
        # argmax gives the first of equal values.
        return logits.argmax(-1)
    highest = logits.amax(-1, keepdim=True)
    cumulative = ((logits - highest) / temperature).softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    # The product may round up to the total, which no entry exceeds.
    bound = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, bound, right=True).squeeze(-1)


def _widened(block: Tensor, width: int, count: int, fill: float) -> Tensor:
    """The first `width` columns of [B, T] and `count` after them."""
    return torch.cat((block[:, :width], block.new_full((len(block), count), fill)), dim=1)


def _forward(plan: Plan, side: Side) -> Forward:
    model, store = plan.model, plan.model.weights
    sampler = walker(plan, NAME, side)
    rows, length = plan.tokens.input_ids.shape
    requirement = require([sampler], store, rows, length + required_sample(plan).new_tokens, limit=plan.memory_limit)
    steps = required_sample(plan).new_tokens
    step = estimate([sampler], store, rows, length + steps // 2)
    seconds = steps * FASTEST[model.device.type].seconds_of(step.amounts)
    require_time(seconds, f"sampling {steps:,} tokens", "Ask for fewer `new_tokens`, or give the tokens as a file.")
    if store.residency == "stream" and fits(model.graph, side.plan.dtypes, model.device, plan.memory_limit):
        store = WeightStore(store.checkpoint, model.graph, model.device, "resident", store.progress)

    def forward(ids: Tensor, mask: Tensor, last_positions: Tensor) -> Tensor:
        observer = _LastLogits(model.graph.output, last_positions)
        device = model.device
        run([sampler], store, ids.to(device), [observer], attention_mask=mask.to(device), work=requirement.work)
        return torch.cat(observer.parts)

    return forward


@dataclass(slots=True)
class _LastLogits:
    """Keeps, on the CPU, the logits at one position of each sequence."""

    output: str
    positions: Tensor
    parts: list[Tensor] = field(default_factory=list)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name == self.output:
            logits = view.tensor(NAME)
            positions = self.positions[slice(*view.wave)].to(logits.device)
            self.parts.append(logits[torch.arange(len(logits), device=logits.device), positions].cpu())
