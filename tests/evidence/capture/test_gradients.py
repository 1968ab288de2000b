"""The gradient level: gradients of modules and parameters are those that torch computes, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import moeparity
from moeparity.evidence.capture.verify.report import text
from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.records import Call
from tests.evidence.capture.test_places import Block
from tests.evidence.capture.test_values import captured


def _digest(tensor: torch.Tensor | None) -> str:
    assert tensor is not None
    return value_digest(row_digests(tensor), tensor.shape, "float32")


def _model() -> Block:
    torch.manual_seed(0)
    return Block()


def _program(model: Block) -> torch.Tensor:
    """Two micro-batches, of which the second is read twice, and a forward pass without a backward one."""
    for size in (3, 1):
        hidden = torch.ones(size, 6, requires_grad=True)
        result = model(hidden)["sum"]
        (result.square().sum() + result.sum()).backward()
    with torch.no_grad():
        model(torch.ones(1, 6))
    model(torch.ones(1, 6))
    return hidden


@pytest.mark.parametrize("level", ["module,gradient", "op,module,gradient"])
def test_gradients_of_modules_and_parameters_are_those_of_torch(tmp_path: Path, level: str) -> None:
    model, plain = _model(), _model()
    hidden = []
    trace = captured(tmp_path / "t", lambda: hidden.append(_program(model)), level=level)
    values, by_id = trace.contents.values, {call.id: call for call in trace.contents.calls}

    def digest(number: int) -> str | None:
        return values[number].digest or values[values[number].base or 0].digest

    leaf = torch.ones(1, 6, requires_grad=True)
    result = plain(leaf)["sum"]
    result.retain_grad()
    (result.square().sum() + result.sum()).backward()
    gradients = [call for call in trace.contents.calls if call.level == "gradient"]
    roots = [call for call in gradients if call.name == "Block.backward"]
    assert [call.phase for call in gradients] == ["backward"] * len(gradients)
    assert len(roots) == 2
    last = roots[1]
    assert (digest(last.inputs["sum"]), digest(last.outputs["0"])) == (_digest(result.grad), _digest(leaf.grad))
    assert last.forward_call is not None
    forward = by_id[last.forward_call]
    assert (forward.level, forward.name, values[forward.inputs["0"]].shape) == ("module", "Block", (1, 6))
    weights = [call for call in gradients if call.name == "Linear.weight.backward"]
    assert sorted((call.path, call.nth) for call in weights) == [
        (f"experts.{expert}.up", nth) for expert in (0, 1) for nth in (0, 1)
    ]
    second = [call for call in weights if call.path == "experts.1.up"][1]
    assert digest(second.outputs["weight"]) == _digest(plain.get_parameter("experts.1.up.weight").grad)
    _program(plain_again := _model())
    for parameter, plain_parameter in zip(model.parameters(), plain_again.parameters(), strict=True):
        assert parameter.grad is not None
        assert plain_parameter.grad is not None
        assert torch.equal(parameter.grad.view(torch.int32), plain_parameter.grad.view(torch.int32))
    assert _digest(hidden[0].grad) == _digest(leaf.grad)


def _modules(calls: tuple[Call, ...]) -> list[Call]:
    return [call for call in calls if call.level == "module"]


def test_where_no_ops_are_recorded_modules_show_their_weights_and_a_stale_one_is_named(tmp_path: Path) -> None:
    model, hidden = _model(), torch.ones(2, 6)
    trace = captured(tmp_path / "t", lambda: model(hidden), level="module")
    (up,) = [call for call in _modules(trace.contents.calls) if call.path == "experts.1.up"]
    assert trace.contents.values[up.weights["weight"]].digest == _digest(model.get_parameter("experts.1.up.weight"))
    model.get_parameter("experts.1.up.weight").data[3, 2] *= 1.5
    with moeparity.capture(verify=tmp_path / "t", level="module") as capture:
        model(hidden)
    words = text(capture.verifier.report)
    assert "Linear at experts.1.up" in words
    assert "weight weight  recorded float32 [6, 6]" in words
    without_ops = captured(tmp_path / "u", lambda: model(hidden))
    assert not any(call.weights for call in without_ops.contents.calls)
