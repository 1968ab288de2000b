"""`Plan`: a recipe that is ready to run, both sides bound and their differences found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity.bisection.real_ranks.data import RealRanks
from moeparity.engine.passes import PassRunner
from moeparity.errors import SpecError, Where
from moeparity.evidence.explain.good_run import GoodRun
from moeparity.evidence.maps.side import RecordedSide
from moeparity.inputs.model import Model
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.pairs import first_pairs
from moeparity.metrics.gated import needed
from moeparity.metrics.gating import declared, parity
from moeparity.metrics.registry import METRICS
from moeparity.metrics.tokens import first_occurrences
from moeparity.metrics.verdict import Gate
from moeparity.ops.preference import CHOSEN
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side, walked
from moeparity.plan.spec import gates, recipe_schema
from moeparity.plan.toggles import Toggle, with_flags
from moeparity.progress import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A recipe that is ready to run: both sides bound, and every difference between them a toggle.

    swaps: the blocks to restore, by selector: their nodes, and all differences there as one toggle (None: no
    difference).
    functions: users' functions by `module:function`. recorded: the candidate, if it is a trace; then both sides are
    bound alike, and the candidate's values are the recorded ones. good_run: the recipe's baseline. real_ranks: what a
    live job computed.
    """

    path: Path
    recipe: recipe_schema.RecipeFile
    model: Model
    tokens: TokenSet
    grid: TokenGrid
    reference: Side
    candidate: Side
    oracle: Side | None
    toggles: tuple[Toggle, ...]
    swaps: Mapping[str, tuple[tuple[str, ...], Toggle | None]]
    functions: Mapping[str, Callable[..., Any]]
    memory_limit: float | None
    attribution: bool
    digests: bool
    recorded: RecordedSide | None = None
    good_run: GoodRun | None = None
    real_ranks: RealRanks | None = None

    @property
    def trial_toggles(self) -> tuple[Toggle, ...]:
        """The toggles of which trials are run: all, or none without attribution."""
        return self.toggles if self.attribution else ()

    @property
    def whole_toggles(self) -> tuple[Toggle, ...]:
        """The toggles of which trials are run, without those that are part of another."""
        return tuple(toggle for toggle in self.trial_toggles if toggle.parent is None)

    @property
    def sides(self) -> Mapping[str, Side]:
        """Both sides by name, the reference first."""
        return {REFERENCE: self.reference, CANDIDATE: self.candidate}

    def refuse_recorded(self, action: str) -> None:
        """Raises SpecError if the candidate is a trace, since `action` would have to run it."""
        if self.recorded is not None:
            where = Where(self.path, self.recipe.candidate.line_of("trace"))
            raise SpecError(
                f"{where}: {action} runs both sides, and a trace can't be run. Name a profile in its place, or use "
                "`moeparity bisect`."
            )

    @property
    def gate(self) -> Gate:
        """The gate on the candidate against the reference."""
        return _gate(self.recipe.reference_gate)

    @property
    def record_gate(self) -> Gate | None:
        """The gate on the distance from the record; None if the recipe has none."""
        return None if self.recipe.record_gate is None else _gate(self.recipe.record_gate)

    @property
    def gated(self) -> tuple[str, ...]:
        """The quantities of a token of which the gate's metric is made."""
        return needed(declared(self.gate))

    @property
    def tokens_on_device(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids (int64), attention mask and scored tokens (bool), each [B, T], on the device of the run."""
        tokens, device = self.tokens, self.model.device
        return tokens.input_ids.to(device), tokens.attention_mask.to(device), tokens.loss_mask.to(device)

    @property
    def outcomes_on_device(self) -> tuple[Tensor, Tensor, Tensor]:
        """As `tokens_on_device`, with what happened in place of the ids: the id of a token, or that of a pair the
        chosen sequence is the better one.
        """
        ids, mask, scored = self.tokens_on_device
        return torch.full_like(ids, CHOSEN) if self.model.graph.pairs else ids, mask, scored

    @property
    def first_occurrences(self) -> Tensor:
        """int64 [B]: for each sequence the first one with the same tokens; of pairs, with the same two sequences."""
        tokens = self.tokens
        if self.model.graph.pairs:
            return first_pairs(tokens)
        return first_occurrences(tokens.told_apart, tokens.loss_mask)

    def walked(self, side: Side) -> Schedule | MicroBatches:
        """The schedule of a side or mixture on its own tokens. Raises SpecError."""
        return walked(side.schedule, self.grid, Where(self.path))

    def on(self, tokens: TokenSet) -> Study:
        """The same study on other tokens."""
        return replace(self, tokens=tokens, grid=token_grid(tokens, with_ids=self.grid.ids is not None))

    def passes(self, progress: Callback | None = None) -> PassRunner:
        """A runner of passes over its tokens."""
        ids, mask, _ = self.tokens_on_device
        return PassRunner(
            weights=self.model.weights,
            input_ids=ids,
            attention_mask=mask,
            images=None if self.tokens.images is None else self.tokens.images.to(self.model.device),
            memory_limit=self.memory_limit,
            progress=progress,
        )

    def with_toggles(self, toggles: list[Toggle]) -> Study:
        """The same study with further toggles."""
        further = (with_flags(toggle, self.reference, self.candidate) for toggle in toggles)
        return replace(self, toggles=(*self.toggles, *further))


def _gate(gate: gates.Gate) -> Gate:
    metric = METRICS[gate.metric or gate.recorded or ""]
    over_sequences = gate.reduce == "sequence" or metric.reduce.kind != "token mean"
    reduce = "sequence" if over_sequences else "token"
    return Gate(metric=metric.name, below=gate.below - parity(metric), reduce=reduce)
