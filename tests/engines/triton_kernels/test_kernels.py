"""Engines' own Triton kernels, launched by their own functions in Triton's interpreter, against our nodes."""

from __future__ import annotations

import pytest

from tests.engines.triton_kernels.case import Outputs, compared, recorded, run
from tests.engines.triton_kernels.every import CASES

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def found() -> dict[str, Outputs]:
    return run(list(CASES.values()))


@pytest.mark.parametrize("name", CASES)
def test_a_node_has_the_kernels_bits(found: dict[str, Outputs], name: str) -> None:
    case = CASES[name]
    seen = compared(case, found[name])
    assert seen.differ == 0
    assert seen.control > 0
    recorded(case)
