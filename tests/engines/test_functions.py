"""Our kernels, as their attributes state functions of other projects, against these functions on CPU, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engines.all_engines import ENGINES
from tests.engines.function import Case, Engine, Function, changed_settings, compared, unequal
from tests.verified import record

pytestmark = pytest.mark.live
FUNCTIONS = [(engine, function) for engine in ENGINES for function in engine.functions]
READ = "read"
"""What stands for the edge from an addition to a norm, which is no attribute."""
CHANGES = [(engine, function, change) for engine, function in FUNCTIONS for change in function.others]


def name(value: Any) -> str:
    if isinstance(value, Engine):
        return value.name
    return value.name if isinstance(value, Function) else ", ".join(f"{at} {to}" for at, to in value.items())


@pytest.mark.parametrize(("engine", "function"), FUNCTIONS, ids=name)
def test_every_bit_is_the_same(engine: Engine, function: Function) -> None:
    for case, theirs, ours in compared(engine, function):
        assert unequal(theirs, ours) == 0
        for op, values in function.at(case).items():
            choices = {name: value for name, value in values.items() if name != READ}
            record(
                op,
                choices,
                engine.name,
                operands=case["x"].dtype,
                p=function.p(case),
                blind=function.blind,
                how="python",
            )


@pytest.mark.parametrize(("engine", "function", "change"), CHANGES, ids=name)
def test_another_choice_gives_other_bits(engine: Engine, function: Function, change: dict[str, Any]) -> None:
    """So that the comparison can fail: the cases tell this choice from that one."""
    live = engine.live(function)

    def differs(label: str, case: Case) -> bool:
        theirs, ours = live[label], function.ours(case, changed_settings(function.at(case), change))
        return any(not torch.equal(theirs[name].double(), ours[name].double()) for name in theirs)

    assert any(differs(label, case) for label, case in function.cases.items())


def test_every_function_can_fail() -> None:
    assert all(function.others for _, function in FUNCTIONS)
