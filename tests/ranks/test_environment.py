"""Every switch of fp32 precision, old and new: the report says what is in effect, and none ends in an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from moeparity.inputs.machine import matmul_precision
from moeparity.ranks.environment import pin, report, unequal

BACKENDS: Any = torch.backends


def _new(backend: Any, precision: str) -> None:
    backend.fp32_precision = precision


LEAVES = [(of, kind) for of in (BACKENDS.cudnn, BACKENDS.mkldnn) for kind in ("conv", "rnn")]
LEAVES += [(BACKENDS.mkldnn, "matmul")]
SWITCHES = {
    "set_float32_matmul_precision high": lambda: torch.set_float32_matmul_precision("high"),
    "set_float32_matmul_precision medium": lambda: torch.set_float32_matmul_precision("medium"),
    "cuda.matmul.allow_tf32": lambda: setattr(BACKENDS.cuda.matmul, "allow_tf32", True),
    "cudnn.allow_tf32": lambda: setattr(BACKENDS.cudnn, "allow_tf32", False),
    "all": lambda: _new(BACKENDS, "tf32"),
    "cuda.matmul": lambda: _new(BACKENDS.cuda.matmul, "tf32"),
    "cudnn": lambda: _new(BACKENDS.cudnn, "tf32"),
    "cudnn.conv": lambda: _new(BACKENDS.cudnn.conv, "ieee"),
    "cudnn.rnn": lambda: _new(BACKENDS.cudnn.rnn, "ieee"),
    "mkldnn": lambda: _new(BACKENDS.mkldnn, "bf16"),
    "mkldnn.matmul": lambda: _new(BACKENDS.mkldnn.matmul, "bf16"),
}


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """All switches as they were, the old ones too, which torch refuses to show while both kinds were set."""
    leaves = (BACKENDS.cuda.matmul, *(getattr(of, kind) for of, kind in LEAVES))
    before, matmul = [leaf.fp32_precision for leaf in leaves], torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(matmul)
    for backend in (BACKENDS, BACKENDS.cudnn, BACKENDS.mkldnn):
        backend.fp32_precision = "none"
    for leaf, precision in zip(leaves, before, strict=True):
        leaf.fp32_precision = precision
    assert torch.get_float32_matmul_precision() == matmul


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_is_told_whatever_it_was_set_by(switch: str) -> None:
    before = report()
    SWITCHES[switch]()
    difference = unequal({0: before, 1: report()})
    assert difference is not None
    assert "environment.switch.fp32_precision." in difference


@pytest.mark.parametrize("switch", SWITCHES)
def test_pinned_ranks_compute_as_rank_0(switch: str) -> None:
    before = report()
    SWITCHES[switch]()
    changed = pin({0: before})
    assert changed
    assert all(name.startswith("fp32_precision.") for name in changed)
    assert unequal({0: before, 1: report()}) is None


def test_old_and_new_switches_of_one_effect_are_one_environment() -> None:
    torch.set_float32_matmul_precision("high")
    old = report()
    torch.set_float32_matmul_precision("highest")
    _new(BACKENDS.cuda.matmul, "tf32")
    _new(BACKENDS.mkldnn.matmul, "tf32")
    assert unequal({0: old, 1: report()}) is None
    assert matmul_precision() == "cuda tf32, cpu tf32"
