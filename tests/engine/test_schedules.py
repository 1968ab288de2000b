"""Random schedules against step after step by op kernels alone, and against one token after the other.

`MOEPARITY_SCHEDULES=500 pytest --hypothesis-profile explore tests/engine/test_schedules.py` tries other ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from moeparity.engine.lockstep import run
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import Where
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.bind import bind
from moeparity.plan.bound import Plan
from moeparity.plan.engine_profile import load_profile, overrides
from moeparity.plan.schedule.steps import Copy, MicroBatches, Schedule, Span, Step
from tests.engine.random_schedules import schedule
from tests.engine.stepwise import Stepwise
from tests.opened import opened
from tests.small_models import Shallow

HERE = Where(Path("test"))
TRIED = int(os.environ.get("MOEPARITY_SCHEDULES", "0"))
EXAMPLES = settings(max_examples=TRIED or 3)
SEEDS = st.integers(0, 2**32)
MODELS = ("qwen3_moe", "mixtral_sliding", "gpt_oss", "deepseek_v3", "qwen3")


@dataclass
class Values:
    """Every value of every walker, all waves together, cut by token: [B, T, ...]."""

    parts: dict[tuple[Any, str], list[Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        for name, ports in view.outputs.items():
            for value, blocks in zip(view.node.values, ports, strict=False):
                whole = assemble(blocks, view.batch).movedim(blocks[0].axis, 1)
                self.parts.setdefault((name, value), []).append(whole.clone())

    def of(self, walker: Any) -> dict[str, Tensor]:
        return {value: torch.cat(parts) for (name, value), parts in self.parts.items() if name == walker}


@dataclass
class Draw:
    """Tokens, a mask with padding at the left, and schedules for them; other ones under each `label`."""

    seed: int
    label: str = ""

    def __post_init__(self) -> None:
        draw = Random(f"{self.seed} {self.label}")  # noqa: S311
        self.shape = (draw.randint(1, 4), draw.randint(2, 9))
        padded = draw.random() < 0.5
        starts = [draw.randint(0, self.shape[1] - 1) if padded else 0 for _ in range(self.shape[0])]
        self.mask = torch.arange(self.shape[1]) >= torch.tensor(starts)[:, None]
        self.schedule, self.other_schedule = (schedule(draw.getrandbits(32), starts, self.shape[1]) for _ in range(2))

    def ids(self, model: Model) -> Tensor:
        return torch.randint(0, model.vocab_size, self.shape, generator=torch.Generator().manual_seed(self.seed))


def planned(model: Model, of: Schedule | MicroBatches, profile: str, dtype: str, **settings: str | float) -> Plan:
    return bind(model.graph, load_profile(profile, HERE), dtype, overrides(settings, HERE), phases=of.phases)


def differing(ours: dict[str, Tensor], truth: dict[str, Tensor]) -> list[str]:
    return [value for value, tensor in ours.items() if not same_bits(tensor, truth[value])]


def walked(model: Model, walkers: list[Walker], ids: Tensor, mask: Tensor | None = None) -> Values:
    values = Values()
    run(walkers, model.weights, ids, [values], attention_mask=mask)
    return values


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", ["hf-eager", "vllm"])
@pytest.mark.parametrize("name", MODELS)
def test_as_if_step_after_step(shallow: Shallow, name: str, profile: str, dtype: str) -> None:
    model = opened(shallow(name))

    @EXAMPLES
    @given(SEEDS)
    def check(seed: int) -> None:
        draw = Draw(seed, f"{name} {profile} {dtype}")
        plan = planned(model, draw.schedule, profile, dtype)
        ids = draw.ids(model)
        ours = walked(model, [Walker(name="one", plan=plan, schedule=draw.schedule)], ids, draw.mask).of("one")
        assert differing(ours, Stepwise(model, plan, ids, draw.mask).run(draw.schedule)) == []

    check()


@pytest.mark.parametrize("profile", ["hf-eager", "vllm", "vllm-batch-invariant"])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_choices_by_numbers_as_if_step_after_step(shallow: Shallow, name: str, profile: str) -> None:
    """Rows, keys and queries: each step, and each sequence of it, has the choices of its own numbers."""
    model = opened(shallow(name))

    # In the schedule of seed 300 the last step is of a phase that an earlier one is of.
    @EXAMPLES
    @example(300)
    @given(SEEDS)
    def check(seed: int) -> None:
        draw = Draw(seed, f"{name} {profile} numbers")
        plan = planned(model, draw.schedule, profile, "bf16", **by_numbers(seed, draw.schedule.phases))
        assert len(plan.phases) > len(draw.schedule.phases)
        ids = draw.ids(model)
        walkers = [
            Walker(name=of, plan=plan, schedule=of) for of in (draw.schedule, draw.other_schedule.on(*draw.shape))
        ]
        values = walked(
            model, walkers[: 1 + (set(draw.other_schedule.phases) <= set(draw.schedule.phases))], ids, draw.mask
        )
        assert differing(values.of(draw.schedule), Stepwise(model, plan, ids, draw.mask).run(draw.schedule)) == []

    check()


def by_numbers(seed: int, phases: tuple[str, ...]) -> dict[str, str | float]:
    """Settings of attention by keys and queries, and of other ops by rows, with bounds that schedules here reach."""
    draw = Random(seed)  # noqa: S311
    lines: dict[str, str | float] = {}
    for phase in draw.sample(phases, draw.randint(1, len(phases))):
        first, last, few = draw.randint(1, 4), draw.randint(5, 9), draw.randint(1, 6)
        lines[f"layers[*].attention.attend:probabilities@{phase}[keys {first}:{last}, rows {few}:]"] = "fp32"
        lines[f"layers[*].attention.attend:scores@{phase}[longest {draw.randint(3, 8)}:]"] = "fp64"
        lines[f"layers[*].attention.attend:output@{phase}[queries :{draw.randint(2, 3)}]"] = "fp16"
        lines[f"layers[*].moe.norm:output@{phase}[rows {few}:]"] = "fp16"
        lines[f"lm_head:output@{phase}[rows :{draw.randint(2, 5)}]"] = "fp32"
    return lines


@pytest.mark.parametrize("profile", ["vllm-batch-invariant", "torchtitan-batch-invariant"])
@pytest.mark.parametrize("name", MODELS)
def test_as_if_token_after_token(shallow: Shallow, name: str, profile: str) -> None:
    """Where no op sees which rows go through it together, no value goes by the steps."""
    model = opened(shallow(name))
    # The order of the exponentials is known of vocabularies that 16 divides.
    settings = {} if model.vocab_size % 16 == 0 else {"log_probs:order": "sequential"}

    @EXAMPLES
    @given(SEEDS)
    def check(seed: int) -> None:
        draw = Draw(seed, f"{name} {profile}")
        plan = planned(model, draw.schedule, profile, "bf16", **settings)
        assert not [node.name for node in model.graph.nodes if plan.sees_rows(node)]
        ids = draw.ids(model)
        ours = walked(model, [Walker(name="one", plan=plan, schedule=draw.schedule)], ids, draw.mask).of("one")
        assert differing(ours, Stepwise(model, plan, ids, draw.mask, by_token=True).run(draw.schedule)) == []

    check()


def test_copies_and_packs_keep_their_steps_where_no_row_sees_another(shallow: Shallow) -> None:
    """A copied token's value is its source's, whatever its own token is; a pack without its mask sees who is before."""
    model, ids = opened(shallow("qwen3_moe")), torch.arange(12).view(2, 6)
    first = Step(spans=(Span(0, 0, 6),), phase="prefill")
    copied = Schedule(steps=(first, Step(spans=(Span(1, 4, 6),), phase="chunk", copies=(Copy(1, 0, 4, 0, 1),))))
    packed = Schedule(steps=(Step(spans=(Span(1, 0, 6), Span(0, 0, 6)), shape="packed", isolated=False),))
    logits = {}
    schedules: dict[str, Schedule | MicroBatches] = {"copied": copied, "packed": packed, "apart": MicroBatches(1)}
    for name, of in schedules.items():
        plan = planned(model, of, "vllm-batch-invariant", "bf16")
        values = walked(model, [Walker(name=name, plan=plan, schedule=of)], ids).of(name)
        logits[name] = values["lm_head"]
        if isinstance(of, Schedule):
            truth = Stepwise(model, plan, ids, torch.ones(2, 6, dtype=torch.bool)).run(of)
            assert differing(values, truth) == []
    assert same_bits(logits["copied"][1, :4], logits["apart"][0, 1:5])
    assert not same_bits(logits["copied"][1, 4:], logits["apart"][1, 4:])
    assert same_bits(logits["packed"][1], logits["apart"][1])
    assert not same_bits(logits["packed"][0], logits["apart"][0])
