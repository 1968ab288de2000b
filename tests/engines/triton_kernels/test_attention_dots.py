"""Engines' attention in Triton as PTX for sm_90, against our nodes on an H100's tensor cores."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from moeparity.numerics.tensor_core import gemm_orders
from tests.engines.triton_kernels import attention_dots as dots
from tests.engines.triton_kernels.case import Case, Outputs, compared, evidence, run
from tests.engines.triton_kernels.test_dots import NEIGHBOURS
from tests.verified import record

CASES = {case.name: case for case in dots.cases()}


@pytest.fixture(scope="module")
def outputs() -> dict[str, Outputs]:
    return run([*CASES.values()], "ptx")


@pytest.mark.live
@pytest.mark.parametrize("name", CASES)
def test_a_node_has_the_kernels_bits(outputs: dict[str, Outputs], name: str) -> None:
    comparison = compared(CASES[name], outputs[name])
    assert comparison.differ == 0
    assert comparison.control > 0.1 * comparison.numbers
    for fields in evidence(CASES[name], outputs[name], "ptx"):
        record(**fields)


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("name", CASES)
def test_the_data_tell_neighbours_of_the_arithmetic(name: str, neighbour: str) -> None:
    with patch.object(gemm_orders, "_instruction", lambda *_: NEIGHBOURS[neighbour]):
        changed = CASES[name].ours()
    assert differing(CASES[name], changed) > dots.LEAST


@pytest.mark.parametrize("kernel", sorted({case.kernel for case in CASES.values()}))
def test_the_data_tell_every_choice_of_a_kernel(kernel: str) -> None:
    """In one of its cases at least."""
    shown, choices = set[str](), set[str]()
    for case in CASES.values():
        if case.kernel == kernel:
            node = case.nodes[0]()
            choices |= {choice for choice in node.at if dots.another(node.at, choice) is not None}
            shown |= node.at.keys() - {*node.blind}
    assert choices <= shown


def differing(case: Case, changed: Outputs) -> float:
    """The share of numbers that are others."""
    return float((case.ours()["output"] != changed["output"]).float().mean())
