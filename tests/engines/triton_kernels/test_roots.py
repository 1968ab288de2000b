"""Norms and silu that Inductor writes for vLLM, as PTX with an H200's approximate instructions, against nodes."""

from __future__ import annotations

import pytest

from moeparity.ops.kernels.norm import rms_norm
from tests.engines.triton_kernels import by_inductor
from tests.engines.triton_kernels.case import Outputs, compared, evidence, run
from tests.ops.plain import FP32
from tests.verified import record

CASES = {case.name: case for case in by_inductor.root_cases()}
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def outputs() -> dict[str, Outputs]:
    return run(list(CASES.values()), "ptx")


@pytest.mark.parametrize("name", CASES)
def test_a_node_has_the_kernels_bits(outputs: dict[str, Outputs], name: str) -> None:
    """With roots rounded to nearest an eighth of the numbers and more are others, with a division a seventh; with a
    quotient rounded to nearest a fifth of silu's.
    """
    comparison = compared(CASES[name], outputs[name])
    assert comparison.differ == 0
    assert comparison.control > comparison.numbers / 8
    for fields in evidence(CASES[name], outputs[name], "ptx"):
        record(**fields)


@pytest.mark.parametrize("name", [name for name in CASES if "mean" in CASES[name].recorded[0].at])
def test_the_sum_is_divided_by_a_reciprocal(outputs: dict[str, Outputs], name: str) -> None:
    arguments = CASES[name].arguments
    at = {**by_inductor.values("rms_norm"), "tensor": 1, "output": FP32, "rsqrt": "approx", "mean": "divide"}
    divided = rms_norm(
        arguments["x"], w={"weight": arguments["weight"]}, p={"eps": by_inductor.EPS, "heads": None}, at=at
    )
    assert (divided != outputs[name]["output"]).float().mean() > 1 / 7
