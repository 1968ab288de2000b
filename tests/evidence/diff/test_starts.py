"""Where two programs begin to differ is named, whatever else in them is fused, cast, or called otherwise."""

from __future__ import annotations

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeparity.evidence.capture.context import capture
from moeparity.evidence.diff.run import diff
from tests.evidence.diff.scene import EXPERTS, HIDDEN, IDS, compared, model, record


def test_the_same_program_has_equal_bits_and_says_how_many_values_were_compared(tmp_path: Path) -> None:
    report = compared(tmp_path, model(), model())
    assert (report.status, report.exit_code, report.starts) == ("pass", 0, ())
    assert report.coverage.compared == report.coverage.values > 300
    assert str(report.coverage.equal) in report.reason
    assert report.coverage.uncovered == 0


def test_one_rare_expert_with_another_weight_is_named_with_its_tokens(tmp_path: Path) -> None:
    stale_model = model()
    stale_model.layers[1].moe.experts.down[3].data[0, 0] += 0.5
    report = compared(tmp_path, model(), stale_model)
    first = report.starts[0]
    assert (report.status, first.kind, first.path) == ("fail", "weight", "layers.1.moe.experts")
    assert (first.differing, first.rows) == (1, 32)
    assert len(report.starts) == 1
    leaving = {layer.layer: layer.differing for layer in report.growth}
    assert "layers.0" not in leaving
    assert 0 < leaving["layers.1"] < IDS.numel()


def test_modules_alone_name_the_innermost_module_with_equal_inputs(tmp_path: Path) -> None:
    stale_model = model()
    stale_model.layers[1].moe.experts.down[3].data[0, 0] += 0.5
    report = compared(tmp_path, model(), stale_model, ops=False)
    first = report.starts[0]
    assert (first.kind, first.ops_a) == ("module", ("layers.1.moe.experts Experts",))
    assert 0 < first.tokens == first.differing < IDS.numel()


def test_modules_alone_name_their_own_weight_where_it_is_another(tmp_path: Path) -> None:
    stale_model = model()
    stale_model.layers[1].moe.gate.weight.data[1, 0] += 0.5
    for name, program in (("a", model()), ("b", stale_model)):
        with capture(tmp_path / name, level="module"):
            program(IDS)
    report = diff(tmp_path / "a", tmp_path / "b")
    first = report.starts[0]
    assert (first.kind, first.path, first.slot) == ("weight", "layers.1.moe.gate", "weight weight of Linear")
    assert (first.differing, first.rows) == (1, 8)


def test_what_lies_between_recorded_modules_is_called_unseen(tmp_path: Path) -> None:
    scaled_model = model()
    scaled_model.layers[1].moe.forward = MethodType(_scaled, scaled_model.layers[1].moe)
    report = compared(tmp_path, model(), scaled_model, ops=False)
    first = report.starts[0]
    assert (first.kind, first.slot) == ("unseen", "0 of Experts")


def _scaled(self: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1, HIDDEN)
    weights, ids = F.softmax(self.gate(flat).float(), -1).topk(2)
    return self.experts(flat * 1.5, ids, weights.to(x.dtype)).reshape(x.shape)


def test_a_router_in_fp32_is_one_op_of_two_dtypes_beside_extra_casts(tmp_path: Path) -> None:
    fp32_model = model()
    for layer in fp32_model.layers:
        layer.moe.gate.forward = MethodType(lambda gate, x: F.linear(x.float(), gate.weight.float()), layer.moe.gate)
    report = compared(tmp_path, model(), fp32_model)
    first = report.starts[0]
    assert (report.status, first.kind, first.path) == ("fail", "op", "layers.0.moe.gate")
    assert (first.ops_a, first.dtypes) == (("layers.0.moe.gate aten.mm.default",), ("bfloat16", "float32"))
    assert first.orders.verdict == "outside"
    assert len(report.starts) == 1


def test_ids_are_told_as_sets_and_as_slots(tmp_path: Path) -> None:
    """Two experts of equal weights at every token would swap slots only; another gate sends tokens elsewhere."""
    shifted_model = model()
    shifted_model.layers[0].moe.gate.weight.data[2] += 1.0
    folder = record(tmp_path / "a", model(), keep=_is_whole_number)
    assert diff(folder, record(tmp_path / "b", shifted_model, keep=_is_whole_number)).starts[0].kind == "weight"
    swapped = model()
    swapped.layers[0].moe.forward = MethodType(_reversed, swapped.layers[0].moe)
    first = diff(folder, record(tmp_path / "c", swapped, keep=_is_whole_number)).starts[0]
    assert (first.sets, first.slots) == (0, IDS.numel())


def _is_whole_number(x: Tensor) -> bool:
    return not x.is_floating_point()


def _reversed(self: Any, x: Tensor) -> Tensor:
    flat = x.reshape(-1, HIDDEN)
    weights, ids = F.softmax(self.gate(flat).float(), -1).topk(2)
    return self.experts(flat, ids.flip(-1), weights.flip(-1).to(x.dtype)).reshape(x.shape)


class _Separate(nn.Module):
    """The attention's projections as three, of one weight."""

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        for part, weight in zip(self.parts, fused.weight.data.chunk(3), strict=True):
            part.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], -1)


def test_fused_projections_are_judged_by_what_they_give(tmp_path: Path) -> None:
    fused_model = model(torch.float32)
    for layer in fused_model.layers:
        layer.attention.qkv = _Separate(layer.attention.qkv)
    report = compared(tmp_path, model(torch.float32), fused_model)
    assert report.coverage.only_b >= 12
    if report.starts:  # whether GEMMs of other widths have equal bits is this machine's business
        assert {start.path for start in report.starts} <= {f"layers.{i}.attention.qkv" for i in range(3)}
        assert all(start.unread == 0 for start in report.starts)
    else:
        assert (report.status, report.coverage.uncovered) == ("pass", 0)
    fused_model.layers[1].attention.qkv.parts[2].weight.data[0] += 1.0
    stale = diff(tmp_path / "a", record(tmp_path / "c", fused_model))
    fused_starts = [start for start in stale.starts if start.path == "layers.1.attention.qkv"]
    assert stale.status == "fail"
    assert len(fused_starts) >= 1
    assert max(start.unread for start in fused_starts) == 3


def test_another_argument_is_named_with_both_values(tmp_path: Path) -> None:
    eps_model = model()
    eps_model.layers[2].norm.forward = MethodType(_with_eps, eps_model.layers[2].norm)
    report = compared(tmp_path, model(), eps_model)
    assert (report.starts[0].path, report.starts[0].scalars) == ("layers.2.norm", ("1: 1e-06 | 1e-05",))
    assert report.other_scalars == ("layers.2.norm aten.add.Tensor: 1: 1e-06 | 1e-05",)


def _with_eps(self: Any, x: Tensor) -> Tensor:
    wide = x.float()
    return (self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5))).to(x.dtype)


def test_faults_of_two_layers_that_cancel_are_both_named(tmp_path: Path) -> None:
    """The first layer's MoE adds a row that the second takes away, before anything reads it."""
    same, faulty_model = model(torch.float32), model(torch.float32)
    for program in (same, faulty_model):
        for layer in program.layers:
            layer.forward = MethodType(_moe_alone, layer)
    for layer, sign in ((0, 1.0), (1, -1.0)):
        _adds(faulty_model.layers[layer].moe, sign)
    report = compared(tmp_path, same, faulty_model)
    assert report.status == "fail"
    assert [start.path for start in report.starts] == ["layers.0.moe", "layers.1.moe"]
    assert report.ends
    assert "layers.1" in report.ends or "layers.0" in report.ends


def _adds(moe: Any, sign: float) -> None:
    plain = moe.forward

    def forward(x: Tensor) -> Tensor:
        return _in_64ths(plain(x)) + sign * 8.0

    moe.forward = forward


def _moe_alone(self: Any, x: Tensor, attention_mask: Tensor) -> Tensor:
    """Reads nothing of what came before, so that faults meet in the residual alone, and all its sums are exact."""
    return _in_64ths(x) + _in_64ths(self.moe(torch.zeros_like(x) + self.moe_norm.weight))


def _in_64ths(x: Tensor) -> Tensor:
    return torch.round(x * 64) / 64


@pytest.mark.parametrize("in_both", [False, True])
def test_a_nan_that_is_born_in_one_expert_is_named_also_where_bits_are_equal(tmp_path: Path, *, in_both: bool) -> None:
    program, broken_model = model(), model()
    for broken in (program, broken_model) if in_both else (broken_model,):
        broken.layers[1].moe.experts.up[5].data[0, 0] = float("inf")
    report = compared(tmp_path, program, broken_model)
    assert report.births
    assert {birth.path for birth in report.births} <= {"layers.1.moe.experts", "layers.2.norm", "layers.2.attention"}
    assert {birth.side for birth in report.births} == ({"both"} if in_both else {"B"})
    assert report.exit_code == (0 if in_both else 1)
    assert not in_both or report.reason.endswith("both hold NaN")


def test_programs_in_two_dtypes_are_told_by_their_errors_not_by_every_row(tmp_path: Path) -> None:
    report = compared(tmp_path, model(torch.float32), model())
    assert (report.status, report.exit_code) == ("inconclusive", 3)
    assert "two dtypes" in report.reason
    assert [layer.layer for layer in report.growth] == ["layers.0", "layers.1", "layers.2"]
    assert all(layer.units is not None and 0.1 < layer.units < 20 for layer in report.growth)


def test_expert_loops_that_leave_out_idle_experts_are_aligned_by_what_they_read(tmp_path: Path) -> None:
    """B calls only experts that some token chose, as transformers does."""
    ids = IDS[:1, :3]
    loop_model = model()
    for layer in loop_model.layers:
        layer.moe.experts.forward = MethodType(_hit_only, layer.moe.experts)
    report = diff(record(tmp_path / "a", model(), [ids]), record(tmp_path / "b", loop_model, [ids]))
    assert (report.status, report.starts) == ("pass", ())
    loop_model.layers[1].moe.experts.down[int(_chosen(model(), ids))].data += 0.5
    stale = diff(tmp_path / "a", record(tmp_path / "c", loop_model, [ids]))
    assert stale.starts[0].path == "layers.1.moe.experts"


def _hit_only(self: Any, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for expert in range(EXPERTS):
        if bool((ids == expert).any()):
            token, slot = (ids == expert).nonzero(as_tuple=True)
            rows = F.linear(F.silu(F.linear(x[token], self.up[expert])), self.down[expert])
            out = out.index_add(0, token, rows * weights[token, slot].unsqueeze(-1))
    return out


def _chosen(program: Any, ids: Tensor) -> Tensor:
    """An expert that the second layer sends the first token to."""
    chosen = []
    program.layers[1].moe.experts.register_forward_pre_hook(lambda _, args: chosen.append(args[1][0, 0]))
    with torch.no_grad():
        program(ids)
    return chosen[0]
