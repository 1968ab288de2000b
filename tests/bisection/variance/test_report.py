"""What an op saw at once, in short, and reports of compositions for the golden texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeparity.bisection.run.data import Variant
from moeparity.bisection.variance.report import (
    Comparison,
    Distance,
    FirstOp,
    GroupVariance,
    Ratio,
    Rows,
    SideVariance,
)

ROWS = Rows(sequences=1, tokens=24, phase="forward")
FIRST = FirstOp(
    node="layers[1].moe.experts",
    op="experts",
    layer=1,
    sequences=1,
    tokens=3,
    computed=48,
    sequence=1,
    token=5,
    against=ROWS,
    rows=replace(ROWS, sequences=2),
)
DISTANCE = Distance(mean_abs_delta=0.0, max_abs_delta=0.0, mult_prob_error=1.0, k3=0.0, kl=0.0, unequal=0, nonfinite=0)
EQUAL = Comparison(
    composition="micro-batch 2",
    schedule="micro-batch 2",
    first_op=None,
    layers=(),
    ratio=Ratio(scored=46, off=0, low=1.0, high=1.0, mean=1.0),
    distance=DISTANCE,
)
VARYING = replace(EQUAL, first_op=FIRST, ratio=replace(EQUAL.ratio, off=23, low=0.9))
GROUP = GroupVariance(kind="forward", against="micro-batch 1", is_one_model=True, comparisons=(EQUAL,), left_out=())
SIDE = SideVariance(
    sides=("reference",),
    variant=Variant(profile="hf-default", dtype="bf16", micro_batch=1, schedule="micro-batch 1"),
    seeing={"linear": 4, "experts": 2},
    groups=(GROUP,),
)


def side(*comparisons: Comparison, is_one_model: bool = True) -> SideVariance:
    return replace(SIDE, groups=(replace(GROUP, comparisons=comparisons, is_one_model=is_one_model),))


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (ROWS, "1 x 24"),
        (replace(ROWS, phase="decode", sequences=3, tokens=1, padding=5), "decode 3 x 1 +5"),
        (replace(ROWS, phase="chunk", keys=96), "chunk 1 x 24, 96 keys"),
    ],
    ids=str,
)
def test_rows_in_short(rows: Rows, text: str) -> None:
    assert str(rows) == text
