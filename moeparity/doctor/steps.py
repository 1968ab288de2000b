"""The steps of a server: those that it recorded, taken for the simulation of the sampler if they are those of the log's
tokens, and decoding, which is one more computation without a mistake.
"""

from __future__ import annotations

import filecmp
from itertools import combinations
from pathlib import Path

from moeparity.doctor.batch import Batch
from moeparity.doctor.engines import Engine
from moeparity.doctor.evidence import Evidence, steps_of
from moeparity.doctor.tokens import prompts_of
from moeparity.errors import SpecError, display_path
from moeparity.inputs.model import Model
from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.bound import Plan
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.steps import MicroBatches, Schedule
from moeparity.plan.spec.scheduling import Scheduling

_DECODED = 64
"""At most this many tokens are decoded: each takes a step."""


def recorded_steps(
    evidence: Evidence, of_log: Batch, sampler: Engine, model: Model, rules: tuple[Rule, ...]
) -> tuple[tuple[Plan, Schedule | MicroBatches] | None, str]:
    """The sampler's plan with the steps on which it runs, and what is said of the file; None, with the reason, if the
    steps are not those of these tokens; "" if there is no such file.
    """
    files = _of_log(evidence)
    if not files:
        return None, ""
    if len(files) > 1:
        return None, f"{len(files)} recorded schedules, and none is named as the log's tokens: none is used"
    (file,) = files
    name = display_path(file)
    if of_log.left_out:
        return None, f"{name}: the server's steps are not used, since sequences without a scored token were left out"
    try:
        recorded = Scheduling(file=str(file.absolute()))
        steps = sampler.on_steps(recorded, model.graph, token_grid(of_log.tokens, with_ids=False), model.dtype, rules)
    except SpecError as error:
        return None, f"{name}: the server's steps are not used: {error}"
    return steps, f"{name}: the server's steps: the sampler is simulated on these"


def decoding(
    sampler: Engine, tokens: TokenSet, model: Model, rules: tuple[Rule, ...]
) -> tuple[Plan, Schedule | MicroBatches] | None:
    """The sampler's plan with the steps in which it decodes the last tokens, one by one: a single row has other bits
    than many in some GEMMs. None where nothing is decoded, or its ops refuse such steps.
    """
    prompts = prompts_of(tokens)
    start = max(prompts.shortest, prompts.length - _DECODED)
    if start >= prompts.length:
        return None
    steps = Scheduling.model_validate({"decode": {"from": start}})
    try:
        return sampler.on_steps(steps, model.graph, prompts.grid, model.dtype, rules)
    except SpecError:
        return None


def _of_log(evidence: Evidence) -> list[Path]:
    """The schedules that may be of the log's tokens: that of their name, or else all that differ."""
    names = {steps_of(path) for path in evidence.logs}
    same_named = [path for path in evidence.schedules if path.name in names]
    every = evidence.schedules
    copies = {path for first, path in combinations(every, 2) if filecmp.cmp(first, path, shallow=False)}
    return same_named[:1] or [path for path in every if path not in copies]
