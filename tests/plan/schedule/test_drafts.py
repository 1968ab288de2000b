"""Verify steps of drafted ids, by hand: what is computed where, and what later steps see."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError, Where
from moeparity.plan.schedule.check import refuse
from moeparity.plan.schedule.drafts import Verified, verified
from moeparity.plan.schedule.steps import Copy, Schedule, Span
from moeparity.plan.schedule.token_grid import TokenGrid

HERE = Where(Path("drafts.jsonl"))
IDS = [10, 11, 12, 13, 14, 15, 16]


def of(drafts: Any, *, prompt: int = 2, flat: bool = False) -> Verified:
    return verified([IDS], [prompt], [drafts], HERE, flat=flat)


def test_drafts_that_are_all_taken_need_no_other_sequence() -> None:
    plan = of([[], [13, 14], [16]])
    assert [step.spans for step in plan.steps] == [(Span(0, 0, 2),), (Span(0, 2, 5),), (Span(0, 5, 7),)]
    assert [(step.phase, step.scored, step.drafted) for step in plan.steps] == [
        ("prefill", (0,), 0),
        ("verify", None, 0),
        ("verify", None, 0),
    ]
    assert (plan.added, plan.accepted, plan.drafted) == ((), 3, 3)


def test_rejected_drafts_are_computed_beside_the_sequence_and_are_gone_afterwards() -> None:
    plan = of([[], [13, 99, 98], [15]])
    assert plan.added == ((10, 11, 12, 13, 99, 98),)
    prefill, verify, second = plan.steps
    assert prefill.spans == (Span(0, 0, 2),)
    assert verify.spans == (Span(1, 2, 6),)
    assert verify.copies == (Copy(1, 0, 2, 0, 0), Copy(0, 2, 4, 1, 0))
    assert (second.spans, second.copies, second.phase) == ((Span(0, 4, 6),), (), "verify")
    assert (plan.accepted, plan.drafted) == (2, 4)


def test_drafts_beside_a_prompt_reach_the_head_with_its_last_row() -> None:
    plan = of([[12, 99], [14], [16]])
    first = plan.steps[0]
    assert (first.phase, first.spans, first.copies) == ("prefill", (Span(1, 0, 4),), (Copy(0, 0, 3, 1, 0),))
    assert first.scored_spans == (Span(1, 1, 4),)
    assert plan.added == ((10, 11, 12, 99),)


def test_drafts_behind_the_end_are_not_taken() -> None:
    plan = of([[], [13, 14], [16, 17]])
    assert plan.added == ((10, 11, 12, 13, 14, 15, 16, 17),)
    assert (plan.accepted, plan.steps[-1].copies[-1]) == (3, Copy(0, 5, 7, 1, 0))


def test_steps_of_a_server_run_together() -> None:
    plan = verified([IDS, IDS[:5]], [2, 3], [[[], [99], [14, 15]], [[], []]], HERE, flat=True)
    assert [step.spans for step in plan.steps] == [
        (Span(0, 0, 2), Span(1, 0, 3)),
        (Span(2, 2, 4), Span(1, 3, 4)),
        (Span(0, 3, 6),),
    ]
    assert [(step.phase, step.shape, step.scored) for step in plan.steps] == [
        ("prefill", "flat", (0, 1)),
        ("verify", "flat", None),
        ("verify", "flat", None),
    ]


@pytest.mark.parametrize("flat", [True, False])
def test_every_token_is_computed_once(flat: bool) -> None:
    generator = random.Random(4)  # noqa: S311
    for _ in range(50):
        sequences = [[generator.randrange(3) for _ in range(generator.randrange(2, 12))] for _ in range(3)]
        prompts = [generator.randrange(1, len(ids)) for ids in sequences]
        drafts = []
        for ids, prompt in zip(sequences, prompts, strict=True):
            of_steps: list[list[int]] = []
            length = prompt
            while length < len(ids):
                drafted = (
                    [generator.randrange(3) for _ in range(generator.randrange(4))] if of_steps or not flat else []
                )
                of_steps.append(drafted)
                pairs = zip(drafted, ids[length:], strict=False)
                length += (
                    next(
                        (i for i, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(drafted), len(ids) - length)
                    )
                    + 1
                )
            drafts.append(of_steps)
        plan = verified(sequences, prompts, drafts, HERE, flat=flat)
        every = [*map(tuple, sequences), *plan.added]
        lengths = tuple(map(len, every))
        width = max(lengths)
        grid = TokenGrid(
            spans=tuple((0, length) for length in lengths),
            prompts=lengths,
            length=width,
            ids=tuple((*ids, *[0] * (width - len(ids))) for ids in every),
        )
        refuse(Schedule(steps=plan.steps, positions="tokens"), grid, HERE)
        for number, ids in enumerate(sequences):
            spans = (range(s.first, s.last) for step in plan.steps for s in step.spans if s.sequence == number)
            copies = (range(c.first, c.last) for step in plan.steps for c in step.copies if c.sequence == number)
            computed = sorted(place for places in chain(spans, copies) for place in places)
            # Nothing follows the last token, so that it may be left out.
            assert computed in (list(range(len(ids))), list(range(len(ids) - 1)))


@pytest.mark.parametrize(
    ("drafts", "prompt", "flat", "says"),
    [
        ([[], [13]], 2, False, "drafts.jsonl:1: after 2 steps token 4 of sequence 0 is not computed"),
        ([[], [13, 14, 15, 16], []], 2, False, "drafts.jsonl:1: drafts of 3 steps, and after 2 of them all 7 tokens"),
        ([[12], [14, 15, 16]], 2, True, "drafts.jsonl:1: drafts beside the prompt; a server prefills alone"),
        ([[]], 0, False, "drafts.jsonl:1: the prompt of sequence 0 has 0 of 7 tokens"),
    ],
)
def test_drafts_that_do_not_fit_are_refused(drafts: Any, prompt: int, flat: bool, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        of(drafts, prompt=prompt, flat=flat)
    assert says in str(caught.value)
