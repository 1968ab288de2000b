"""Cascade attention as profiles state it: from so many requests and keys on, the shared prefix is a run of its own."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch

from moeparity.engine.walker import Walker
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.steps import Schedule, Span, Step
from tests.engine.stepwise import Stepwise
from tests.engine.test_schedules import differing, planned, walked
from tests.opened import opened

ATTEND = "layers[*].attention.attend"
STATED: dict[str, str | float] = {
    f"{ATTEND}:splits@decode[rows 3:, keys 5:]": "shared",
    f"{ATTEND}:shared_keys@decode": 4,
    f"{ATTEND}:split@decode": "bf16",
    f"{ATTEND}:merge@decode": "pairwise",
}


def test_a_prefix_is_a_run_of_its_own_where_rows_and_keys_say_so(qwen3_moe: Path) -> None:
    model, draw = opened(qwen3_moe), Random(1)  # noqa: S311
    prefix = [draw.randrange(model.vocab_size) for _ in range(4)]
    ids = torch.tensor([prefix + [draw.randrange(model.vocab_size) for _ in range(4)] for _ in range(3)])
    prefill = Step(spans=tuple(Span(s, 0, 4) for s in range(3)), shape="flat", phase="prefill")
    three = [Step(spans=tuple(Span(s, t, t + 1) for s in range(3)), shape="flat", phase="decode") for t in (4, 5)]
    two = [Step(spans=tuple(Span(s, t, t + 1) for s in range(2)), shape="flat", phase="decode") for t in (6, 7)]
    last = Step(spans=(Span(2, 6, 7),), shape="flat", phase="decode")
    of = Schedule(steps=(prefill, *three, *two, last, Step(spans=(Span(2, 7, 8),), shape="flat", filler=True)))
    plans = {
        name: planned(model, of, "vllm", "bf16", **settings) for name, settings in (("cascade", STATED), ("plain", {}))
    }
    ours = {name: walked(model, [Walker(name=name, plan=p, schedule=of)], ids).of(name) for name, p in plans.items()}
    mask = torch.ones_like(ids, dtype=torch.bool)
    assert differing(ours["cascade"], Stepwise(model, plans["cascade"], ids, mask).run(of)) == []
    attended = [ours[name]["layers[0].attention.attend"] for name in plans]
    differs = (attended[0] != attended[1]).any(-1)
    assert not differs[:, :4].any(), "no prompt is cut"
    assert differs[:, 4:6].any(), "three requests with 5 and 6 keys are"
    assert not differs[:2, 6:].any(), "two are too few, whatever their keys"
    assert same_bits(attended[0][:, :4], attended[1][:, :4])
