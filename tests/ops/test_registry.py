"""What holds for all declarations."""

from __future__ import annotations

import pytest

from moeparity.ops.registry import OPS


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_name_means_one_thing_at_an_op(name: str) -> None:
    """What an op refuses is asked of weights, inputs and parameters by name, so none may hide another."""
    op = OPS[name]
    names = [*(port.name for port in op.weights), *op.inputs, *(parameter.name for parameter in op.parameters)]
    assert len(names) == len(set(names))
