"""A user's function that gives other bits when called again is named, whatever the verdict on the one call was."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity import bisect
from moeparity.bisection.determinism.data import NotDeterministic
from moeparity.bisection.determinism.measure import CALLS, WAVES
from moeparity.bisection.determinism.show import determinism_reading
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report
from tests.bisection.reports import on_screen
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

NORM = '''
import torch


def norm(x, *, node):
    wide = x.float()
    normalized = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + node.params["norm"]["eps"])).to(x.dtype)
    return node.weights["norm.weight"] * normalized


CALLS = []


def drifting(x, *, node):
    """The last value of one token grows with every call in layer 1."""
    out = norm(x, node=node).clone()
    if node.layer == 1:
        CALLS.append(node.name)
        out[0, 2, -1] += len(CALLS)
    return out


def alternating(x, *, node):
    """As between two buffers: in layer 1 two calls in a row give one value, the next two another."""
    out = norm(x, node=node).clone()
    if node.layer == 1:
        CALLS.append(node.name)
        out[0, 2, -1] += (len(CALLS) + ODD) // 2 % 2
    return out
'''
SEQUENCES, TOKENS, WIDTH = 6, 4, 64


def report_of(folder: Path, checkpoint: Path, function: str, micro_batch: int, odd: int = 0) -> Report:
    module = f"again_{function}_{micro_batch}_{odd}"
    (folder / f"{module}.py").write_text(f"{NORM}\nODD = {odd}\n", "utf-8")
    candidate = {
        "micro_batch": micro_batch,
        "impl": [{"nodes": ["layers[*].moe.norm"], "call": f"{module}:{function}"}],
    }
    tokens = {"input_ids": random_tokens(SEQUENCES, TOKENS)}
    path = write_recipe(folder, checkpoint, tokens, {"micro_batch": micro_batch}, candidate)
    return bisect(path, device="cpu", options=Options(allow_code=True, attribution=False), opener=opened)


@pytest.mark.parametrize("micro_batch", [1, 2, SEQUENCES])
def test_a_function_that_drifts_is_named_with_its_node_and_how_many_values_differ(
    tmp_path: Path, qwen3_moe: Path, micro_batch: int
) -> None:
    report = report_of(tmp_path, qwen3_moe, "drifting", micro_batch)
    calls = CALLS * min(WAVES, SEQUENCES // micro_batch)
    assert report.not_deterministic == (
        NotDeterministic(
            side="candidate",
            call=f"again_drifting_{micro_batch}_0:drifting",
            node="layers[1].moe.norm",
            values=calls,
            of=calls * micro_batch * TOKENS * WIDTH,
            calls=calls,
        ),
    )
    shown = on_screen(report, 500)
    assert "layers[1].moe.norm (candidate) is not deterministic" in shown
    assert shown.index("not deterministic") < shown.index("Where it starts")
    assert '"not_deterministic"' in report.to_json()


@pytest.mark.parametrize("odd", [0, 1])
def test_a_function_that_alternates_is_named_though_there_is_one_wave(
    tmp_path: Path, qwen3_moe: Path, odd: int
) -> None:
    """The call after the one that it is held against may meet the same turn; the one after that does not."""
    report = report_of(tmp_path, qwen3_moe, "alternating", SEQUENCES, odd)
    assert [entry.node for entry in report.not_deterministic] == ["layers[1].moe.norm"]


def test_a_function_that_gives_the_same_bits_again_is_not(tmp_path: Path, qwen3_moe: Path) -> None:
    report = report_of(tmp_path, qwen3_moe, "norm", 2)
    assert (report.verdict.reason, report.not_deterministic) == ("all bits are equal", ())


def test_one_function_in_many_layers_is_one_sentence() -> None:
    entries = [
        NotDeterministic(side=side, call=f"k:{side}", node=f"layers[{i}].moe.norm", values=i, of=100, calls=2)
        for side in ("reference", "candidate")
        for i in (1, 2, 3)
    ]
    assert list(determinism_reading(entries)) == [
        f"k:{side} at layers[1:4].moe.norm ({side}) is not deterministic: in 6 further calls on the same input 6 of "
        "300 values had other bits. Every result below rests on one call of each; another run may give other results."
        for side in ("reference", "candidate")
    ]
    assert list(determinism_reading([])) == []
