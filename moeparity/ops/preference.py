"""`preference`: what a reward model says of a pair of sequences, as logits of two outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeparity.ops.attribute import site
from moeparity.ops.declaration import Op, Role, Tokens, row_by_row
from moeparity.ops.memory import Call, Memory, Shapes

OUTCOMES = 2
CHOSEN = 0
"""The outcome that the chosen sequence is the better one, as an index into `OUTCOMES`."""


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return (OUTCOMES,)


def _bytes(call: Call) -> Sequence[int]:
    return [call.bytes_of("difference")]


PREFERENCE = Op(
    name="preference",
    says="Bradley-Terry: of sequences 2i (chosen) and 2i + 1 (rejected) the difference of their scores, and 0: logits "
    "of which is the better one, so that log P(chosen) is minus the loss of the pair: score [B, T, 1], mask [B, T] -> "
    "[B, T, 2]. A sequence has the score of its last real token. The logits stand in the chosen sequence at the token "
    "before that, as those of any token do; everywhere else are zeros.",
    inputs=("score", "mask"),
    attributes=(
        site(
            "difference",
            "the difference of the two scores is rounded to this dtype; the loss of it is taken in fp64",
            default="fp32",
        ),
    ),
    tokens=Tokens(sees_rows=row_by_row, mixes=True, pairs=True),
    role=Role(family="head"),
    memory=Memory(widths=_widths, output_bytes=_bytes),
    kernel="preference:preference",
    source="transformers 5.23.0, modeling_layers.py GenericForSequenceClassification.forward; R. A. Bradley and "
    "M. E. Terry, Biometrika 39, 1952",
)
