"""Engines' own Triton kernels, launched by their own functions, against our nodes: interpreted, and as PTX."""

from __future__ import annotations

import pytest

from tests.engines.triton_kernels.case import PACKAGES, Outputs, compared, evidence, is_there, run, there
from tests.engines.triton_kernels.every import CASES
from tests.verified import record

pytestmark = pytest.mark.live
NAMES = [(how, name) for how, cases in CASES.items() for name in cases]


@pytest.fixture(scope="module")
def outputs(request: pytest.FixtureRequest) -> dict[str, dict[str, Outputs]]:
    """Of the cases that this session tests."""
    selected = {item.nodeid.partition("[")[2] for item in request.session.items if item.path == request.path}
    wanted = [(how, name) for how, name in NAMES if f"{_id(how, name)}]" in selected and is_there(CASES[how][name])]
    return {how: run([CASES[how][name] for way, name in wanted if way == how], how) for how in CASES}


def _id(how: str, name: str) -> str:
    return f"{how}-{name}"


@pytest.mark.parametrize(("how", "name"), NAMES, ids=[_id(*pair) for pair in NAMES])
def test_a_node_has_the_kernels_bits(outputs: dict[str, dict[str, Outputs]], how: str, name: str) -> None:
    case = CASES[how][name]
    there(PACKAGES[case.program])
    comparison = compared(case, outputs[how][name])
    assert comparison.differ == 0
    assert comparison.control > 0
    for fields in evidence(case, outputs[how][name], how):
        record(**fields)
