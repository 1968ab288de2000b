"""Engines' own Triton kernels, launched by their own functions, against our nodes: interpreted, and as PTX."""

from __future__ import annotations

import pytest

from tests.engines.triton_kernels.case import PACKAGES, Outputs, compared, evidence, is_there, run, there
from tests.engines.triton_kernels.every import CASES
from tests.verified import record

pytestmark = pytest.mark.live
NAMES = [(how, name) for how, cases in CASES.items() for name in cases]


@pytest.fixture(scope="module")
def outputs() -> dict[str, dict[str, Outputs]]:
    return {how: run([case for case in cases.values() if is_there(case)], how) for how, cases in CASES.items()}


@pytest.mark.parametrize(("how", "name"), NAMES)
def test_a_node_has_the_kernels_bits(outputs: dict[str, dict[str, Outputs]], how: str, name: str) -> None:
    case = CASES[how][name]
    there(PACKAGES[case.program])
    comparison = compared(case, outputs[how][name])
    assert comparison.differ == 0
    assert comparison.control > 0
    for fields in evidence(case, outputs[how][name], how):
        record(**fields)
