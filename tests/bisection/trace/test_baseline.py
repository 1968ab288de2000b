"""A good run beside the candidate: what it differs in as much already is subtracted, and a fault beside it is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from moeparity.errors import MoeparityError, TraceError
from tests.evidence.traced import captured, recipe, tokens

NORM = "layers[{}].moe.norm"


def noisy(program: Any) -> None:
    """Every norm before the experts rounds once, at its end: as an engine's fused kernel does."""
    for layer in program.model.layers:
        _round_once(layer.post_attention_layernorm, 1e-6)


def _round_once(norm: nn.Module, eps: float) -> None:
    weight = norm.get_parameter("weight")

    def forward(x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    norm.forward = forward


def with_wrong_eps(program: Any) -> None:
    """The same, and a norm that rounds so has another eps too."""
    noisy(program)
    _round_once(program.model.layers[1].post_attention_layernorm, 1e-1)


def with_stale_experts(program: Any) -> None:
    """The same, and the experts of the last layer are behind, where nothing was noisy."""
    noisy(program)
    program.model.layers[2].mlp.experts.down_proj.data *= 1.01


def compared(
    folder: Path,
    checkpoint: Path,
    patch: Callable[[Any], object] | None,
    *,
    seed: int = 1,
    good: Mapping[str, Any] | None = None,
) -> Report:
    """The report on a program with noise and a fault, beside a good run with noise over tokens of another `seed`."""
    ids = tokens((2, 9))
    baseline = captured(checkpoint, folder / "good", tokens((2, 9), seed=seed), **({"patch": noisy} | dict(good or {})))
    trace = captured(checkpoint, folder / "trace", ids, patch=patch)
    return bisect(recipe(folder, checkpoint, ids, trace, baseline=str(baseline), grafts=False), device="cpu")


@pytest.mark.parametrize(
    ("fault", "node"), [(with_wrong_eps, NORM.format(1)), (with_stale_experts, "layers[2].moe.combine")]
)
def test_a_fault_beside_noise_is_the_only_root(
    qwen3_moe: Path, tmp_path: Path, fault: Callable[[Any], None], node: str
) -> None:
    """Of a norm that is noisy in the good run too, since its own error is many times as large."""
    report = compared(tmp_path, qwen3_moe, fault, seed=7)
    assert [root.node for root in report.roots] == [node]
    assert {difference.node for difference in report.subtracted} == {NORM.format(i) for i in range(3)} - {node}
    assert all(0 < difference.local <= 2 * difference.baseline for difference in report.subtracted)
    assert report.summary.starts.startswith(node)
    assert "in the good run by as much, and so" in " ".join(report.trace.reading if report.trace else ())


def test_of_noise_alone_there_is_no_root(qwen3_moe: Path, tmp_path: Path) -> None:
    report = compared(tmp_path, qwen3_moe, noisy, seed=7)
    assert report.roots == ()
    assert len(report.subtracted) == 3
    assert report.summary.starts == "nowhere beyond the good run, which differs as much at 3 nodes"
    assert report.summary.to_set == "nothing is known to set: no node that the trace shows has other bits of its own"


def test_a_good_run_without_noise_takes_nothing(qwen3_moe: Path, tmp_path: Path) -> None:
    report = compared(tmp_path, qwen3_moe, noisy, good={"patch": None})
    assert [root.node for root in report.roots] != []
    assert {root.node for root in report.roots} == {NORM.format(i) for i in range(3)}
    assert report.subtracted == ()


def stale_router(program: Any) -> None:
    program.model.layers[0].mlp.gate.weight.data *= 1.5


@pytest.mark.parametrize(
    ("good", "message"),
    [
        ({"patch": stale_router, "level": "op,module"}, "read is not the checkpoint's, the first model.layers.0.mlp"),
        ({"save": ""}, "it shows no node that the candidate's trace shows"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused(
    qwen3_moe: Path, tmp_path: Path, good: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        compared(tmp_path, qwen3_moe, noisy, good=good)


def test_a_run_of_another_model_is_refused(qwen3_moe: Path, mixtral: Path, tmp_path: Path) -> None:
    ids = tokens((2, 9))
    good = captured(mixtral, tmp_path / "good", ids)
    trace = captured(qwen3_moe, tmp_path / "trace", ids)
    with pytest.raises(TraceError, match=r"8 experts where the checkpoint says 16 .*A good run is of this checkpoint"):
        bisect(recipe(tmp_path, qwen3_moe, ids, trace, baseline=str(good)), device="cpu")


def test_the_candidate_itself_is_no_baseline(qwen3_moe: Path, tmp_path: Path) -> None:
    ids = tokens((2, 9))
    trace = captured(qwen3_moe, tmp_path / "trace", ids)
    with pytest.raises(TraceError, match="the baseline is the candidate's own trace"):
        bisect(recipe(tmp_path, qwen3_moe, ids, trace, baseline=str(trace)), device="cpu")


def test_a_profile_has_no_baseline(qwen3_moe: Path, tmp_path: Path) -> None:
    ids = tokens((2, 9))
    trace = captured(qwen3_moe, tmp_path / "trace", ids)
    path = recipe(tmp_path, qwen3_moe, ids, trace, candidate={"profile": "vllm"}, baseline=str(trace))
    with pytest.raises(MoeparityError, match="this candidate is a profile"):
        bisect(path, device="cpu")
