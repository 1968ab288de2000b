"""What is said of compositions: nothing more than was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeparity.bisection.run.report import Variant
from moeparity.bisection.variance.report import (
    Comparison,
    Distance,
    FirstOp,
    GroupVariance,
    Ratio,
    Rows,
    SideVariance,
)
from moeparity.bisection.variance.words import headline, reading, where

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
DISTANCE = Distance(mean_abs_delta=0.0, max_abs_delta=0.0, k3=0.0, kl=0.0, unequal=0, nonfinite=0)
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
HELPS = "What helps: the same composition before and in the training step, or a batch-invariant profile."


def side(*comparisons: Comparison, is_one_model: bool = True) -> SideVariance:
    return replace(SIDE, groups=(replace(GROUP, comparisons=comparisons, is_one_model=is_one_model),))


def test_equal_bits_of_ops_that_see_their_rows_are_no_proof() -> None:
    (sentence,) = reading([SIDE])
    assert sentence == (
        "In the reference every op gives every token the same bits in all of these compositions, on this machine. "
        "linear and experts go by which tokens are computed together. Other sizes, tokens or processors may still "
        "give others."
    )
    assert headline([SIDE]) == "nothing varies in 2 compositions"


def test_only_where_no_op_sees_them_it_cannot_matter() -> None:
    (sentence,) = reading([replace(SIDE, seeing={})])
    assert sentence.startswith("The schedule can't matter here: no op of the reference ")
    assert not any("can't matter" in sentence for sentence in reading([replace(side(VARYING), seeing={"linear": 1})]))


def test_what_varies_is_named_with_its_ratio() -> None:
    sentences = [*reading([side(EQUAL, VARYING)])]
    assert sentences[0].startswith(
        "In the reference 1 of 2 compositions gives some tokens other bits than the one they "
    )
    assert "is not 1 at 23 of 46 scored tokens (50.00%)" in sentences[1]
    assert sentences[-1] == HELPS
    assert headline([side(EQUAL, VARYING)]) == (
        "layers[1].moe.experts varies first in micro-batch 2, ratio != 1 at 23 of 46 scored tokens"
    )
    assert where(FIRST) == "3 of 48 in 1 sequence, first token 5 of sequence 1"


def test_what_is_rounded_away_again_needs_no_help() -> None:
    sentences = [*reading([side(replace(VARYING, ratio=EQUAL.ratio))])]
    assert sentences[-1].endswith("no scored token has another log-probability, every ratio is exactly 1.")


def test_other_models_are_not_called_rounding() -> None:
    sentences = [*reading([replace(side(VARYING, is_one_model=False), seeing={})])]
    assert sentences[0].endswith("No op goes by which tokens are computed together.")
    assert sentences[-1].startswith("Packs without a mask, or whose positions run on, ")
    assert "these are other models in other compositions" in sentences[-1]
    assert not any("can't matter" in each for each in reading([replace(side(EQUAL, is_one_model=False), seeing={})]))


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
