"""Continues a recipe's prompts with one side, in that side's own numerics, before the run.

Every new token costs a pass over all prompts and what was generated so far, so the time grows with the square of the
number of new tokens. The steps are those of the side's schedule: if it decodes, the logits are those of its decode, as
in the run itself; under micro-batches the numerics are those of prefill. Nothing stops at an end-of-sequence token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from moeparity.bisection.study import Study
from moeparity.bisection.trials import walker
from moeparity.engine.duration import FASTEST, require_time
from moeparity.engine.footprint import estimate, require
from moeparity.engine.lockstep import run
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError, TokensError, Where, counted
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.continuation import ends, widened
from moeparity.inputs.tokens.grid import grid_of
from moeparity.inputs.tokens.images import refuse_images
from moeparity.inputs.weights.store import WeightStore, fits
from moeparity.plan.schedule.steps import MicroBatches, Schedule, Step
from moeparity.plan.schedule.token_grid import fillers
from moeparity.plan.sides import Side, walked
from moeparity.plan.spec.recipe_schema import Sample
from moeparity.progress import Callback, Progress


class Decoding:
    """The schedule of a side that samples: which steps can run with the tokens sampled so far.

    The number of tokens is known in advance, so the whole schedule is. A step can run once all its tokens are there,
    and the keys of the tokens before them. It has the same shapes as later in the run, and so the same bits. Raises
    SpecError if no token can be sampled under it.
    """

    def __init__(self, study: Study, side: Side) -> None:
        self.study, self.settings = study, side.schedule
        self._refuse()
        self.whole = study.walked(side).on(study.grid.sequences, study.grid.length)

    def possible(self, mask: Tensor, lasts: Tensor) -> tuple[Schedule | MicroBatches, int, Tensor]:
        """What can run if the tokens of `mask` (bool [B, T]) are known: in sequence i those up to column `lasts[i]`.

        Returns the schedule, the number of columns that it covers, and the sequences (int64) of whose last known token
        it gives logits. A side without decode steps runs whole sequences anew for each token.
        """
        if self.settings.start is None:
            grid = grid_of(mask, mask.sum(1))
            return walked(self.settings, grid, Where(self.study.path)), mask.shape[1], torch.arange(len(mask))
        steps = list(self._possible_steps((lasts + 1).tolist()))
        length = max(part.last for step in steps for part in step.parts)
        scored = {(span.sequence, span.last - 1) for step in steps for span in step.scored_spans}
        rows = [row for row, last in enumerate(lasts.tolist()) if (row, last) in scored]
        grid = replace(self.study.grid, length=length)
        schedule = replace(self.whole, steps=(*steps, *fillers(steps, grid)))
        return schedule, length, torch.tensor(rows)

    def _possible_steps(self, known_columns: Sequence[int]) -> Iterator[Step]:
        there = [first for first, _ in self.study.grid.spans]
        for step in self.whole.steps:
            after = [*there]
            for part in step.parts:
                after[part.sequence] = max(after[part.sequence], part.last)
            copied = {copy.sequence: copy.last for copy in step.copies}
            starts = all(span.first <= max(there[span.sequence], copied.get(span.sequence, 0)) for span in step.spans)
            sources = all(copy.last + copy.shift <= after[copy.source] for copy in step.copies)
            if (
                not step.filler
                and starts
                and sources
                and all(span.last <= known_columns[span.sequence] for span in step.spans)
            ):
                there = after
                yield step

    def _refuse(self) -> None:
        """Raises SpecError for a schedule that needs tokens before they can be sampled."""
        settings, prompts = self.settings, self.study.grid.prompts
        if settings.recorded is not None:
            problem = "a recorded schedule (`file`) knows its tokens"
        elif settings.pack is not None:
            problem = "`pack` is of whole sequences"
        elif settings.verify:
            problem = "which drafted tokens `verify` would reject is not known"
        elif isinstance(settings.start, int) and settings.start > min(prompts):
            problem = f"`decode.from` is {settings.start}, and a prompt has {counted(min(prompts), 'token')}"
        else:
            return
        raise SpecError(
            f"{_where(self.study)}: {problem}, so nothing can be sampled under this side's schedule. Expected one "
            "that decodes from the prompt, or micro-batches; or give the tokens as a file."
        )


def refuse_found(prompts: Study, continued: Study, side: Side) -> None:
    """Raises SpecError if the sampled tokens change the side's schedule: its prefix cache would find some of them."""
    if side.schedule.start is not None and continued.walked(side) != prompts.walked(side):
        raise SpecError(
            f"{_where(prompts)}: the prefix cache would find sampled tokens, which were not there yet while other "
            "tokens were sampled. Leave `prefix` out where tokens are sampled, or give the tokens as a file."
        )


def _where(study: Study) -> Where:
    return Where(study.path, study.recipe.tokens.line_of("sample"))


NAME = "sampler"
Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(ids int64 [B, T], attention mask bool [B, T], column of each sequence's last token [B]) -> (the sequences of which a
token can be drawn now, int64 [n]; their logits [n, V]).
"""


def generate(study: Study, *, progress: Callback | None = None) -> Study:
    """The study with its prompts continued if the recipe has `tokens.sample`, else the study itself.

    If the weights take at most half of the free memory they stay there between forwards; else each forward streams
    them. Raises TokensError if the logits to sample from are not finite, or a token of an image is sampled; SpecError
    if nothing can be sampled under the side's schedule or a user's function leaves it without logits; MoeparityError if
    memory is too small.
    """
    sample = study.recipe.tokens.sample
    if sample is None:
        return study
    side = study.sides[sample.source]
    _refuse_no_logits(study, side, sample)
    truncated = _truncates(study, side, sample)
    forward = _forward(study, side, study.model.graph.scores if truncated else study.model.graph.output)
    if truncated:
        # What is kept is drawn from as it is: it is divided by the temperature already.
        sample = sample.model_copy(update={"temperature": 1.0})

    def step(ids: Tensor, mask: Tensor, lasts: Tensor) -> tuple[Tensor, Tensor]:
        rows, logits = forward(ids, mask, lasts)
        if not bool((logits.isfinite() | ((logits == -torch.inf) & truncated)).all()):
            raise TokensError(
                f"{Where(study.path, study.recipe.tokens.line_of('sample'))}: the {sample.source}'s logits hold NaN or "
                "infinity, so nothing can be sampled from it."
            )
        return rows, logits

    continued_study = study.on(continued(study.tokens, sample, step, progress))
    refuse_found(study, continued_study, side)
    tokens, where = continued_study.tokens, Where(study.path, study.recipe.tokens.line_of("sample"))
    refuse_images(tokens.images, tokens.input_ids, study.model.graph, where, "It was sampled. Give another `seed`.")
    return continued_study


def _refuse_no_logits(study: Study, side: Side, sample: Sample) -> None:
    """Raise SpecError if a user's function computes log-probabilities without giving the logits to sample from."""
    region = side.plan.replaced().get(study.model.graph.output)
    if region is not None and region.nodes[-1] != study.model.graph.output:
        alternative = "reference" if sample.source == "candidate" else "candidate"
        raise SpecError(
            f"{region.where}: impl {region.call} runs in place of {' and '.join(region.nodes)}, so the {sample.source} "
            f"has no logits to sample from. Set `tokens.sample.from: {alternative}`, or give the tokens as a file."
        )


def _truncates(study: Study, side: Side, sample: Sample) -> bool:
    """Whether the side leaves tokens out of what it samples from. Raises SpecError if it does so at another temperature
    than that of the sampling.
    """
    graph = study.model.graph
    node = graph.makers[graph.scores]
    if any(node.name in region.nodes for region in side.plan.replaced().values()):
        return False
    active = side.plan.active(node)
    if not node.op.role.truncates(active):
        return False
    if active["temperature"] != sample.temperature:
        raise SpecError(
            f"{_where(study)}: temperature {sample.temperature:g}, and the {sample.source}, which leaves tokens out of "
            f"what it samples from, has {node.name}:temperature {active['temperature']}. Give both the same."
        )
    return True


def required_sample(study: Study) -> Sample:
    """What a study is to sample. Raises SpecError if its recipe asks for nothing."""
    sample = study.recipe.tokens.sample
    if sample is None:
        where = Where(study.path, study.recipe.line_of("tokens"))
        raise SpecError(f"{where}: tokens has no `sample:`, so there is nothing to generate. Add it, or run `bisect`.")
    return sample


def continued(tokens: TokenSet, sample: Sample, forward: Forward, progress: Callback | None = None) -> TokenSet:
    """`sample.new_tokens` more tokens after each sequence's last one; only these are scored, with the label of that
    one.

    Sequences padded on the right continue where they end, over their pads. At temperature 0 the token is the largest
    logit, the lowest id among equals. Else it is the first id at which the cumulative softmax of logits / temperature,
    in fp64, exceeds u times its total. All u come from one table [sequences, new_tokens], uniform in [0, 1), which
    torch.rand fills in fp64 on the CPU from the seed; so draws do not depend on the order of computation. A token whose
    logit is -inf is never drawn.
    """
    wide, lasts = widened(tokens, sample.new_tokens), ends(tokens)
    ids, mask = wide.input_ids.clone(), wide.attention_mask & ~wide.loss_mask
    uniform = torch.rand(
        len(ids), sample.new_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(sample.seed)
    )
    drawn = torch.zeros_like(lasts)
    while bool((drawn < sample.new_tokens).any()):
        columns = lasts + drawn
        known_columns = slice(0, int(columns.max()))
        rows, logits = forward(ids[:, known_columns], mask[:, known_columns], columns - 1)
        waiting = drawn[rows] < sample.new_tokens
        rows, logits = rows[waiting], logits[waiting]
        cells = rows, columns[rows]
        ids[cells] = draw(logits.double(), sample.temperature, uniform[rows, drawn[rows]])
        mask[cells] = True
        drawn[rows] += 1
        if progress is not None:
            progress(_progress(int(drawn.sum()), sample.new_tokens, len(ids)))
    return replace(wide, input_ids=ids)


def _progress(count: int, total: int, sequences: int) -> Progress:
    """The progress after `count` of `total` new tokens of all sequences."""
    done = count // sequences
    return Progress(
        step="sampling",
        at=f"token {done} of {total}",
        done=done,
        total=total,
        work=count,
        unit="tokens",
    )


def draw(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """One token per row: logits fp64 [B, V] on the CPU, uniform fp64 [B] in [0, 1) -> int64 [B]."""
    if temperature == 0:
        # argmax gives the first of equal values.
        return logits.argmax(-1)
    highest = logits.amax(-1, keepdim=True)
    cumulative = ((logits - highest) / temperature).softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    # The product may round up to the total, which no entry exceeds.
    bound = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, bound, right=True).squeeze(-1)


def _forward(study: Study, side: Side, output: str) -> Forward:
    model, store, sample = study.model, study.model.weights, required_sample(study)
    decoding, pictures = Decoding(study, side), study.tokens.images
    sampler = walker(study, NAME, side)
    rows, length = study.tokens.input_ids.shape[0], study.grid.length
    require([sampler], store, rows, length, limit=study.memory_limit)
    step = estimate([sampler], store, rows, sampled_length(sampler, length, sample.new_tokens))
    seconds = sample.new_tokens * FASTEST[model.device.type].seconds_of(step.amounts)
    many = f"sampling {sample.new_tokens:,} tokens"
    require_time(seconds, many, "Ask for fewer `new_tokens`, or give the tokens as a file.")
    if store.residency == "stream" and fits(model.graph, side.plan.dtypes, model.device, study.memory_limit):
        store = WeightStore(store.checkpoint, model.graph, model.device, "resident", store.progress)

    def forward(ids: Tensor, mask: Tensor, lasts: Tensor) -> tuple[Tensor, Tensor]:
        schedule, columns, ready = decoding.possible(mask, lasts)
        observer = _LastLogits(output, lasts.clamp(max=columns - 1))
        tokens, real = (block[:, :columns].to(model.device) for block in (ids, mask))
        images = None if pictures is None else pictures.of_columns(columns).to(model.device)
        run([replace(sampler, schedule=schedule)], store, tokens, [observer], attention_mask=real, images=images)
        return ready, torch.cat(observer.parts)[ready]

    return forward


def sampled_length(sampler: Walker, length: int, new_tokens: int) -> int:
    """How many columns a pass has while sampling, on average; for a schedule with steps of its own, at most."""
    return length - new_tokens // 2 if isinstance(sampler.schedule, MicroBatches) else length


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
