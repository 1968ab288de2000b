"""Which forwards of a program are steps of a schedule: packs of whole beginnings, and no packs that go on."""

from __future__ import annotations

import torch

from moeparity.evidence.maps.computed_together import own_schedule
from moeparity.plan.schedule.steps import Span

MASK = torch.ones(2, 3, dtype=torch.bool)


def test_beginnings_behind_each_other_are_a_pack() -> None:
    """Also where two sequences fill their rows, so that no number is left out between them."""
    schedule = own_schedule([(1, 6)], [torch.arange(6)], MASK, [False])
    assert schedule is not None
    assert [(step.shape, step.spans) for step in schedule.steps] == [("packed", (Span(0, 0, 3), Span(1, 0, 3)))]


def test_parts_that_go_on_behind_each_other_are_no_pack() -> None:
    """They read keys of the forward before, which a pack does not."""
    assert own_schedule([(1, 4), (1, 2)], [torch.tensor([0, 1, 3, 4]), torch.tensor([2, 5])], MASK, [False] * 2) is None
