"""Random small programs against the evaluation of `tests.ptx.scalar`."""

from __future__ import annotations

import pytest

from tests.ptx.random_programs import Instruction, Program
from tests.ptx.templates import TEMPLATES


@pytest.mark.parametrize("begin", range(0, 240, 40))
def test_random_programs(begin: int) -> None:
    assert [line for seed in range(begin, begin + 40) for line in Program(seed).differences()] == []


def test_the_seeds_of_a_run_of_thousands_reach_every_instruction() -> None:
    used = {step.template.text for seed in range(1000) for step in Program(seed).steps if isinstance(step, Instruction)}
    assert used == {template.text for template in TEMPLATES}
