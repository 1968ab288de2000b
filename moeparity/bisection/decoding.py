"""The schedule of a side that samples its own tokens: which steps can run with the tokens sampled so far.

The number of tokens is known in advance, so the whole schedule is. A step can run once all its tokens are there, and
the keys of the tokens before them. It has the same shapes as later in the run, and so the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from moeparity.bisection.plan import Plan
from moeparity.errors import SpecError, Where, counted
from moeparity.inputs.tokens.grid import grid_of
from moeparity.plan.schedule.steps import MicroBatches, Schedule, Step
from moeparity.plan.schedule.token_grid import fillers
from moeparity.plan.sides import Side, walked


class Decoding:
    """The schedule of a side that samples. Raises SpecError if no token can be sampled under it."""

    def __init__(self, plan: Plan, side: Side) -> None:
        self.plan, self.settings = plan, side.schedule
        self._refuse()
        self.whole = plan.walked(side).on(plan.grid.sequences, plan.grid.length)

    def possible(self, mask: Tensor, lasts: Tensor) -> tuple[Schedule | MicroBatches, int, Tensor]:
        """What can run if the tokens of `mask` (bool [B, T]) are known: in sequence i those up to column `lasts[i]`.

        Returns the schedule, the number of columns that it covers, and the sequences (int64) of whose last known token
        it gives logits. A side without decode steps runs whole sequences anew for each token.
        """
        if self.settings.start is None:
            grid = grid_of(mask, mask.sum(1))
            return walked(self.settings, grid, Where(self.plan.path)), mask.shape[1], torch.arange(len(mask))
        steps = list(self._possible_steps((lasts + 1).tolist()))
        length = max(part.last for step in steps for part in step.parts)
        scored = {(span.sequence, span.last - 1) for step in steps for span in step.scored_spans}
        rows = [row for row, last in enumerate(lasts.tolist()) if (row, last) in scored]
        grid = replace(self.plan.grid, length=length)
        schedule = replace(self.whole, steps=(*steps, *fillers(steps, grid)))
        return schedule, length, torch.tensor(rows)

    def _possible_steps(self, known_columns: Sequence[int]) -> Iterator[Step]:
        there = [first for first, _ in self.plan.grid.spans]
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
        settings, prompts = self.settings, self.plan.grid.prompts
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
            f"{_where(self.plan)}: {problem}, so nothing can be sampled under this side's schedule. Expected one "
            "that decodes from the prompt, or micro-batches; or give the tokens as a file."
        )


def refuse_found(prompts: Plan, continued: Plan, side: Side) -> None:
    """Raises SpecError if the sampled tokens change the side's schedule: its prefix cache would find some of them."""
    if side.schedule.start is not None and continued.walked(side) != prompts.walked(side):
        raise SpecError(
            f"{_where(prompts)}: the prefix cache finds tokens that were sampled, which were not there to be found "
            "while others were. Leave `prefix` out where tokens are sampled, or give the tokens as a file."
        )


def _where(plan: Plan) -> Where:
    return Where(plan.path, plan.recipe.tokens.line_of("sample"))
