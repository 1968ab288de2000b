"""Engines' kernels with `tl.dot` as PTX for sm_90, against our nodes on an H100's tensor cores."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from moeparity.numerics.tensor_core import gemm_orders
from moeparity.numerics.tensor_core.instructions import instruction
from tests.engines.products import FURTHER, GRIDS
from tests.engines.triton_kernels import dots
from tests.engines.triton_kernels.case import Case, Outputs, compared, evidence, run
from tests.verified import record

CASES = {case.name: case for case in dots.cases()}
IN_8_BITS = {case.name: case for case in dots.fp8_cases()}
MOST_ALIKE = 0.4
"""The least share of bf16 outputs that each other arithmetic changes."""
H100 = instruction("h100", "bf16")
assert instruction("h200", "bf16") == H100
NEIGHBOURS = {
    "a bit less": replace(H100, dot_add=replace(H100.dot_add, fraction=24)),
    "a bit more": replace(H100, dot_add=replace(H100.dot_add, fraction=26)),
    "half a block": replace(H100, dot_add=replace(H100.dot_add, products=8), span=8),
    "two blocks": replace(H100, dot_add=replace(H100.dot_add, products=32), span=32),
}


@pytest.fixture(scope="module")
def outputs() -> dict[str, Outputs]:
    return run([*CASES.values(), *IN_8_BITS.values()], "ptx")


@pytest.mark.live
@pytest.mark.parametrize("name", CASES)
def test_a_node_has_the_kernels_bits(outputs: dict[str, Outputs], name: str) -> None:
    comparison = compared(CASES[name], outputs[name])
    assert comparison.differ == 0
    assert comparison.control > MOST_ALIKE * comparison.numbers
    for fields in evidence(CASES[name], outputs[name], "ptx"):
        record(**fields)


@pytest.mark.live
@pytest.mark.parametrize("name", IN_8_BITS)
def test_a_node_in_8_bits_has_the_kernels_bits(outputs: dict[str, Outputs], name: str) -> None:
    """Scales and additions in the kernel's order; sums of fp32 in place of a tensor core's are others."""
    comparison = compared(IN_8_BITS[name], outputs[name])
    assert comparison.differ == 0
    assert comparison.control > MOST_ALIKE * comparison.numbers
    assert differing(IN_8_BITS[name], IN_8_BITS[name].ours(order="native")) > 0.1
    for fields in evidence(IN_8_BITS[name], outputs[name], "ptx"):
        record(**fields)


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("name", CASES)
def test_the_data_tell_neighbours_of_the_arithmetic(name: str, neighbour: str) -> None:
    with patch.object(gemm_orders, "_instruction", lambda *_: NEIGHBOURS[neighbour]):
        changed = CASES[name].ours()
    assert differing(CASES[name], changed) > MOST_ALIKE


@pytest.mark.parametrize("name", CASES)
def test_the_data_tell_sums_that_round_to_nearest(name: str) -> None:
    """torch's products, added in fp32; two chains in place of one; the down projection in two fixed blocks."""
    assert differing(CASES[name], CASES[name].ours("native")) > MOST_ALIKE
    assert differing(CASES[name], CASES[name].ours(splits=2)) > 0.01
    assert differing(CASES[name], CASES[name].ours(blocks=2)) > 0.01


@pytest.mark.parametrize("operand", ["weights", "activations"])
@pytest.mark.parametrize("name", CASES)
def test_the_data_tell_operands_on_a_grid(name: str, operand: str) -> None:
    """Of 8 bits, with a scale for each token or block."""
    grids = {**FURTHER, **GRIDS, "activation_scales": "token", operand: torch.float8_e4m3fn}
    assert differing(CASES[name], CASES[name].ours(**grids)) > MOST_ALIKE


def differing(case: Case, changed: Outputs) -> float:
    """The share of the second GEMM's numbers that are others."""
    ours = case.ours()
    return float((ours["rows"] != changed["rows"]).float().mean())
