"""What holds of every schedule: each token once, keys first, budgets and batches kept; and of every mixture of two."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moeparity.errors import SpecError
from moeparity.plan.schedule.check import refuse
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.settings import (
    GROUPS,
    MICRO_BATCH,
    PARTS,
    ScheduleSettings,
    described,
    mixed,
    part_in_words,
    parts,
    possible_phases,
    settings,
)
from moeparity.plan.schedule.steps import TOGETHER, Groups, Schedule
from moeparity.plan.schedule.token_grid import TokenGrid
from tests.plan.schedule.grids import HERE, grids, schedulings, written


def check(of: Schedule, tokens: TokenGrid) -> None:
    """Each token of the grid in exactly one step, its keys in that step or before."""
    counts = Counter(
        (part.sequence, column) for step in of.steps for part in step.parts for column in range(part.first, part.last)
    )
    assert counts == Counter(product(range(tokens.sequences), range(tokens.length)))
    there: set[tuple[int, int]] = set()
    for step in of.steps:
        new = {(part.sequence, column) for part in step.parts for column in range(part.first, part.last)}
        for span in step.spans:
            first, last = tokens.spans[span.sequence]
            keys = {(span.sequence, column) for column in range(first, min(span.first, last))}
            assert keys <= there | {(p.sequence, c) for p in step.copies for c in range(p.first, p.last)}
        for copy in step.copies:
            sources = {(copy.source, column + copy.shift) for column in range(copy.first, copy.last)}
            assert sources <= there | new
        there |= new
    # The fillers are behind all others, and hold padding and last tokens only.
    flags = [step.filler for step in of.steps]
    assert flags == sorted(flags)
    for span in (span for step in of.steps if step.filler for span in step.spans):
        first, last = tokens.spans[span.sequence]
        assert span.last <= first or span.first >= last - 1
    # The checker of recorded lists has no objection.
    steps = tuple(step for step in of.steps if not step.filler)
    refuse(Schedule(steps=steps, positions=of.positions), tokens, HERE)


def limits(of: Schedule, by: ScheduleSettings) -> None:
    """Token budgets, most sequences, batches that start together, one token each when decoding."""
    for step in (step for step in of.steps if not step.filler):
        if step.phase == "decode":
            assert all(span.tokens == 1 for span in step.spans)
        if step.phase == "verify":
            assert max(span.tokens for span in step.spans) <= by.verify + 1
        if by.is_flat:
            assert step.shape == "flat"
            assert len(step.spans) <= (by.sequences or len(step.spans))
        elif by.pack is not None and step.shape == "packed":
            assert step.tokens <= by.pack
        if by.chunk is not None and (by.rule == "vllm-v1" or (by.is_flat and step.phase in ("prefill", "chunk"))):
            page = by.block or 1 if by.rule == "sglang" else 1
            assert step.tokens <= max(by.chunk // page, 1) * page
        if not by.continuous and by.batch is not None and step.shape != "packed":
            assert len({span.sequence // by.batch for span in step.spans}) == 1
        assert step.padding == 0 or (step.phase in ("decode", "verify") and step.rows in by.buckets)


@given(st.data())
def test_every_token_is_in_one_step_and_every_limit_is_kept(data: st.DataObject) -> None:
    tokens = data.draw(grids())
    by = written(data.draw(schedulings(tokens.sequences)), tokens.sequences)
    of = schedule(by, tokens, HERE)
    check(of, tokens)
    limits(of, by)


def _side(data: st.DataObject, tokens: TokenGrid) -> ScheduleSettings:
    """A side that a recipe could have."""
    if data.draw(st.booleans()):
        return settings(None, data.draw(st.integers(1, 8)), tokens.sequences, HERE)
    by = written(data.draw(schedulings(tokens.sequences)), tokens.sequences)
    try:
        refuse_unfit(by, tokens, HERE)
    except SpecError:
        assume(False)
    return by


@given(st.data())
def test_every_mixture_of_two_sides_makes_a_schedule(data: st.DataObject) -> None:
    tokens = data.draw(grids())
    groups = st.sampled_from((TOGETHER, Groups(2), Groups(2, "experts")))
    reference, candidate = (replace(_side(data, tokens), groups=data.draw(groups)) for _ in range(2))
    names = parts(reference, candidate)
    assert mixed(reference, candidate, names) == candidate
    assert mixed(candidate, reference, names) == reference
    assert mixed(reference, candidate, []) == reference
    assert bool(names) == (reference != candidate)
    parts_taken = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    mixture = mixed(reference, candidate, parts_taken)
    of = schedule(mixture, tokens, HERE)
    check(of, tokens)
    limits(of, mixture)
    assert set(of.phases) <= {*possible_phases(mixture)}
    for name in parts_taken:
        assert part_in_words(reference, name) != part_in_words(candidate, name)
    # Groups are told with the rest of the placement.
    assert (described(reference) == described(candidate)) == (not {*names} - {GROUPS})


def test_every_setting_is_in_one_part() -> None:
    names = Counter(name for part in PARTS.values() for name in part)
    assert names == Counter({*ScheduleSettings.__dataclass_fields__} - {"recorded", "groups"})


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        ({"decode": {"from": "prompt"}}, ["schedule:decode"]),
        ({"prefill": {"chunk": 4}}, ["schedule:prefill"]),
        (
            {"rule": "vllm-v1", "decode": {"from": "prompt"}, "prefix": {"block": 16}},
            ["schedule:batch", "schedule:decode", "schedule:prefill", "schedule:prefix"],
        ),
        ({"pack": {"length": 64}}, ["schedule:pack"]),
        (
            {"pack": {"length": 64, "mask": "none", "positions": "running"}},
            ["schedule:pack", "schedule:mask", "schedule:positions"],
        ),
        ({"rule": "transformers"}, []),
    ],
)
def test_parts(candidate: dict[str, Any], expected: list[str]) -> None:
    assert parts(settings(None, None, 4, HERE), written(candidate, 4)) == expected


def test_two_micro_batches_differ_in_one_thing() -> None:
    small, large = settings(None, 2, 8, HERE), settings(None, 8, 8, HERE)
    assert parts(small, large) == [MICRO_BATCH]
    assert [part_in_words(side, MICRO_BATCH) for side in (small, large)] == ["2", "8"]
    assert mixed(small, large, [MICRO_BATCH]) == large


def test_words() -> None:
    fields = {
        "rule": "vllm-v1",
        "decode": {"from": 3, "arrivals": [0, 1]},
        "prefill": "whole",
        "verify": 2,
        "buckets": [4, 1],
        "prefix": {"block": 16},
        "sequences": 8,
    }
    by = written(fields, 2)
    assert [part_in_words(by, part) for part in PARTS] == [
        "vllm-v1, continuous, at most 8, arriving at steps 0, 1",
        "from token 3",
        "whole",
        "2 drafted",
        "1, 4",
        "blocks of 16",
        "none",
        "block",
        "reset",
        "none",
    ]
    assert described(by).startswith(
        "vllm-v1, continuous, at most 8, arriving at steps 0, 1, decode from token 3, verify"
    )
    assert described(written({"pack": {"length": 64}}, 8)) == "transformers, 8 together, pack 64 tokens"
