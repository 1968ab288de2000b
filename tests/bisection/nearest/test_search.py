"""A user's function is asked which choice of the vocabulary it made."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from moeparity.bisection.nearest.report import ChoiceMatch, Nearest
from moeparity.bisection.nearest.search import _with, choices, nearest
from moeparity.bisection.nearest.text import nearest_lines
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.prepare import Options, Plan, prepare
from moeparity.bisection.text import print_report
from moeparity.bisection.trials import walker
from moeparity.engine import passes
from moeparity.engine.footprint import estimate
from moeparity.engine.lockstep import run
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError
from tests.planted.places import random_tokens, write_recipe

CODE = '''
import torch


def norm(x, *, node):
    """The weight is multiplied before the cast, in layer 1."""
    weight, rows = node.weights["norm.weight"], x.float()
    rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (rows * weight.float()).to(x.dtype) if node.layer == 1 else weight * rows.to(x.dtype)


def both(x, *, node):
    """A zero-centred weight, rounded: two choices."""
    weight, rows = node.weights["norm.weight"], x.float()
    rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (1 + weight.float()).to(x.dtype) * rows.to(x.dtype)


def none(x, *, node):
    return x


def block(x, ids, weights, *, node):
    """transformers' loop, in fp32."""
    up, down = node.weights["experts.gate_up"], node.weights["experts.down"]
    flat, picked, out = x.flatten(0, 1), ids.flatten(0, 1), torch.zeros_like(x.flatten(0, 1), dtype=torch.float32)
    for expert in range(len(up)):
        slot, token = torch.where(picked.t() == expert)
        gate, wide = torch.nn.functional.linear(flat[token], up[expert]).chunk(2, -1)
        rows = torch.nn.functional.linear(torch.nn.functional.silu(gate) * wide, down[expert])
        out.index_add_(0, token, (rows * weights.flatten(0, 1)[token, slot, None]).float())
    return out.to(x.dtype).view(x.shape)
'''


def prepared(folder: Path, checkpoint: Path, function: str, nodes: Any, **more: Any) -> Plan:
    module = f"nearest_{abs(hash(str(folder)))}"
    (folder / f"{module}.py").write_text(CODE, "utf-8")
    impl = {"impl": [{"nodes": nodes, "call": f"{module}:{function}"}]}
    sides: dict[str, dict[str, Any]] = {"reference": {}, "candidate": {}}
    sides[more.get("side", "candidate")] = impl
    path = write_recipe(folder, checkpoint, {"input_ids": random_tokens(4, 6)}, *sides.values())
    return prepare(path, device="cpu", options=Options(allow_code=True))


def test_a_bisection_names_it_at_every_root(tmp_path: Path, qwen3_moe: Path) -> None:
    plan = prepared(tmp_path, qwen3_moe, "norm", "layers[*].moe.norm")
    report = bisect(plan.path, device="cpu", options=Options(allow_code=True))
    (named,) = report.nearest
    assert named == nearest(plan, "layers[1].moe.norm")
    out = io.StringIO()
    print_report(report, Console(file=out, width=200))
    assert "layers[1].moe.norm:normalized=fp32" in out.getvalue().partition("Nearest choices")[2].splitlines()[1]


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_a_choice_is_named_where_it_gives_every_bit(tmp_path: Path, qwen3_moe: Path, side: str) -> None:
    found = nearest(prepared(tmp_path, qwen3_moe, "norm", "layers[*].moe.norm", side=side), "layers[1].moe.norm")
    assert found is not None
    assert found.in_vocabulary
    assert found.found[0].choices == ("layers[1].moe.norm:normalized=fp32",)
    assert all(one.exact and one.equal == 1 and one.mean_ulp == 0 for one in found.found)
    assert 0 < found.as_it_is < 1
    (line,) = nearest_lines(found)
    assert line.endswith("(all bits equal)")


def test_two_choices_are_named_together(tmp_path: Path, qwen3_moe: Path) -> None:
    found = nearest(prepared(tmp_path, qwen3_moe, "both", "layers[0].attention.norm"), "layers[0].attention.norm")
    assert found is not None
    assert found.in_vocabulary
    node = "layers[0].attention.norm"
    assert {f"{node}:offset=1.0", f"{node}:weight=bf16"} in [{*one.choices} for one in found.found]


def test_the_nodes_of_a_region_are_all_tried(tmp_path: Path, qwen3_moe: Path) -> None:
    nodes = ["layers[*].moe.experts", "layers[*].moe.combine"]
    found = nearest(prepared(tmp_path, qwen3_moe, "block", nodes), "layers[0].moe.combine")
    assert found is not None
    assert ("layers[0].moe.combine:accumulate=fp32",) in [one.choices for one in found.found]
    assert found.in_vocabulary


def test_what_no_choice_gives_is_not_in_the_vocabulary(tmp_path: Path, qwen3_moe: Path) -> None:
    found = nearest(prepared(tmp_path, qwen3_moe, "none", "layers[0].moe.norm"), "layers[0].moe.norm")
    assert found is not None
    assert not found.in_vocabulary
    assert "not in the vocabulary" in next(nearest_lines(found))


def test_where_no_function_closes_there_is_nothing_to_name(tmp_path: Path, qwen3_moe: Path) -> None:
    assert nearest(prepared(tmp_path, qwen3_moe, "norm", "layers[0].moe.norm"), "layers[1].moe.norm") is None


def test_the_nearest_choice_is_told_where_it_is_nearer() -> None:
    close = ChoiceMatch(choices=("norm:square=bf16",), equal=0.75, mean_ulp=0.3, exact=False)
    told = [*nearest_lines(Nearest(node="norm", call="mine:norm", tried=50, as_it_is=0.5, found=(close,)))]
    assert told[1] == "  nearest: norm:square=bf16, 75.00% of elements equal (50.00% without it)"
    told = [*nearest_lines(Nearest(node="norm", call="mine:norm", tried=50, as_it_is=0.8, found=(close,)))]
    assert len(told) == 1


def test_memory_decides_how_many_go_together(tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = prepared(tmp_path, qwen3_moe, "norm", "layers[*].moe.norm")
    sizes: list[int] = []

    def counting(walkers: list[Walker], *args: Any, **more: Any) -> Any:
        sizes.append(len(walkers))
        return run(walkers, *args, **more)

    monkeypatch.setattr(passes, "run", counting)
    whole = nearest(plan, "layers[1].moe.norm")
    at_once, sizes = sizes, []
    region = plan.candidate.plan.region("layers[1].moe.norm")
    assert region is not None
    base = plan.reference
    bounds = [bound for choice in choices(base.plan, region) for bound in _with(base.plan, (choice,))]
    both, *trials = (
        [walker(plan, "function", plan.candidate), walker(plan, "base", base)],
        *(walker(plan, i, replace(base, plan=bound)) for i, bound in enumerate(bounds)),
    )
    shape = plan.tokens.input_ids.shape
    # As much as the one trial that needs most takes beside the two that always walk.
    least = max(estimate([*both, trial], plan.model.weights, *shape).total for trial in trials)
    assert nearest(replace(plan, memory_limit=least), "layers[1].moe.norm") == whole
    assert len(sizes) > len(at_once)
    assert max(sizes) < max(at_once)


def test_a_trial_that_a_kernel_refuses_in_the_pass_leaves_the_others(
    tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = prepared(tmp_path, qwen3_moe, "norm", "layers[*].moe.norm")
    whole = nearest(plan, "layers[1].moe.norm")

    def refusing(walkers: list[Walker], *args: Any, **more: Any) -> Any:
        if any(w.plan.settings["layers[1].moe.norm", "square"].value == "bf16" for w in walkers):
            raise SpecError("refused")
        return run(walkers, *args, **more)

    monkeypatch.setattr(passes, "run", refusing)
    found = nearest(plan, "layers[1].moe.norm")
    assert found.found == whole.found
    assert found.tried == whole.tried - 1
