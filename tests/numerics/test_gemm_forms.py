"""Which cuts of K and which orders there are, and in which words the others are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from moeparity.numerics.gemm_forms import refusal, spans


@pytest.mark.parametrize(("k", "splits"), [(1, 1), (12, 4), (13, 4), (9, 2), (7, 7), (10, 4), (100, 7)])
def test_k_is_cut_as_torch_chunk_cuts(k: int, splits: int) -> None:
    parts = [part.tolist() for part in torch.arange(k).chunk(splits)]
    assert [list(range(k))[span] for span in spans(k, splits)] == parts
    assert (refusal(k, "native", splits, "sequential") is None) == (len(parts) == splits)


TAKEN = [
    (7, "native", 1, "sequential"),
    (0, "native", 1, "sequential"),
    (7, "sequential(fma)", 1, "sequential"),
    (7, "blocks(64) | sequential", 7, "fold_hi"),
    (3, "tree(2+1+0)", 1, "sequential"),
    (6, "tree(2+1+0)", 2, "tree(1+0)"),
    # With one split its order is never used.
    (7, "sequential", 1, "tree(0+1+2)"),
]
REFUSED = {
    (7, "native", 0, "sequential"): ("splits", "7 inputs cannot be cut into 0 splits; expected 1 to 7."),
    (7, "native", 8, "sequential"): ("splits", "7 inputs cannot be cut into 8 splits; expected 1 to 7."),
    (10, "native", 7, "sequential"): (
        "splits",
        "10 inputs in splits of 2 are 5 splits, not 7. Set 5, or a number that divides 10.",
    ),
    (7, "tree(2+1+0)", 1, "sequential"): ("order", "tree(2+1+0) adds up 3 products, and each output has 7."),
    (7, "tree(2+1+0)", 2, "sequential"): ("order", "tree(2+1+0) adds up 3 products, and a split has 3 or 4."),
    (7, "sequental", 1, "sequential"): ("order", "character 1: 'sequental'"),
    (7, "native", 2, "sequential(fma)"): ("splits_order", "sequential(fma): fma contracts products, and splits are"),
    (7, "native", 3, "tree(0+1)"): ("splits_order", "tree(0+1) adds up 2 splits, and there are 3."),
    (7, "native", 2, "native"): ("splits_order", "native is no order that can be written out"),
}


@pytest.mark.parametrize("arguments", TAKEN)
def test_what_can_be_added_up(arguments: tuple[int, str, int, str]) -> None:
    assert refusal(*arguments) is None


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_is_refused_with_a_reason(arguments: tuple[int, str, int, str]) -> None:
    attribute, reason = REFUSED[arguments]
    fault = refusal(*arguments)
    assert fault is not None
    assert fault[0] == attribute
    assert fault[1].startswith(reason)


def test_it_is_known_without_torch() -> None:
    call = "moeparity.numerics.gemm_forms.refusal(8, 'fold_hi', 2, 'reverse')"
    code = f"import sys, moeparity.numerics.gemm_forms; {call}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
