"""A user's function in place of our ops: Hugging Face's own MoE module, whole and patched, and functions that fail."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from moeparity import bisect
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.errors import SpecError
from tests.planted.places import random_tokens, write_recipe

HF_MOE = '''
"""transformers' own MoE block as an impl for moeparity."""
import functools

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock


def block(x, *, node):
    return _module(node)(x)


def patched(x, *, node):
    """The router's weights are rounded to bf16 twice: a fault no config shows."""
    module = _module(node)
    if node.layer != 1:
        return module(x)
    forward = module.gate.forward

    def rounded(*args):
        logits, weights, ids = forward(*args)
        return logits, (weights * 1.0078125).to(weights.dtype), ids

    module.gate.forward = rounded
    return module(x)


def _module(node):
    config = Qwen3MoeConfig(**node.config)
    config._attn_implementation = "eager"
    config._experts_implementation = "IMPLEMENTATION"
    with torch.device("meta"):
        module = Qwen3MoeSparseMoeBlock(config)
    w = node.weights
    state = {
        "gate.weight": w["gate.weight"],
        "experts.gate_up_proj": w["experts.gate_up"],
        "experts.down_proj": w["experts.down"],
    }
    module.load_state_dict(state, assign=True)
    return module.eval()
'''
MOE = [f"layers[*].moe.{name}" for name in ("gate", "router", "experts", "combine")]


def recipe_with(folder: Path, checkpoint: Path, code: str, function: str, **fields: Any) -> Path:
    """A recipe whose `side` (the candidate by default) runs a function of this code in place of `nodes`."""
    # Modules are imported once per process, so that each test needs a name of its own.
    module = "kernels_" + re.sub(r"\W", "_", folder.name)
    (folder / f"{module}.py").write_text(code, "utf-8")
    side, profile = fields.get("side", "candidate"), fields.get("profile", "hf-eager")
    sides: dict[str, dict[str, Any]] = {name: {"profile": profile} for name in ("reference", "candidate")}
    sides[side]["impl"] = [{"nodes": fields.get("nodes", MOE), "call": f"{module}:{function}"}]
    sides["candidate"] |= fields.get("candidate", {})
    return write_recipe(folder, checkpoint, {"input_ids": random_tokens(26, 8)}, *sides.values())


def report_of(folder: Path, checkpoint: Path, code: str, function: str, **fields: Any) -> Report:
    options = Options(allow_code=True, swap=fields.pop("swap", ()))
    return bisect(recipe_with(folder, checkpoint, code, function, **fields), device="cpu", options=options)


IMPLEMENTATION = {"hf-eager": "eager", "hf-default": "grouped_mm"}


@pytest.mark.parametrize("side", ["candidate", "reference"])
@pytest.mark.parametrize("profile", IMPLEMENTATION)
def test_hugging_faces_own_moe_is_parity(tmp_path: Path, qwen3_moe: Path, profile: str, side: str) -> None:
    code = HF_MOE.replace("IMPLEMENTATION", IMPLEMENTATION[profile])
    report = report_of(tmp_path, qwen3_moe, code, "block", profile=profile, side=side)
    assert (report.verdict.status, report.verdict.reason, report.roots) == ("pass", "all bits are equal", ())
    (toggle,) = report.toggles
    assert (toggle.name, toggle.kind, toggle.had_no_effect) == (f"{', '.join(MOE)}:impl", "implementation", True)
    assert report.flips is None, "nobody saw the routes inside the function"


def test_a_patched_block_is_localised(tmp_path: Path, qwen3_moe: Path) -> None:
    code = HF_MOE.replace("IMPLEMENTATION", "eager")
    report = report_of(tmp_path, qwen3_moe, code, "patched", swap=("layers[1].moe", "layers[0].moe", "norm"))
    (root,) = report.roots
    assert (root.node, [choice.attribute for choice in root.choices]) == ("layers[1].moe.combine", ["impl"])
    assert root.choices[0].candidate.endswith(":patched")
    by_name = {swap.selector: swap.toggle for swap in report.swaps}
    assert by_name["layers[1].moe"].restores_all
    assert (by_name["layers[1].moe"].restored.kl, by_name["layers[1].moe"].restored.k3) == (0.0, 0.0)
    assert by_name["layers[0].moe"].had_no_effect
    assert by_name["norm"] is None, "nothing differs there"


def test_a_function_beside_other_differences(tmp_path: Path, qwen3_moe: Path) -> None:
    code = HF_MOE.replace("IMPLEMENTATION", "eager")
    candidate = {"set": {"layers[0].attention.norm:normalized": "fp32"}}
    report = report_of(tmp_path, qwen3_moe, code, "patched", candidate=candidate)
    assert report.roots[0].node == "layers[0].attention.norm"
    assert {t.name.rpartition(":")[2]: t.had_no_effect for t in report.toggles} == {"normalized": False, "impl": False}


ONE_NODE = """
def add(a, b, *, node):
    assert node.inputs == ("layers[0].moe.residual", "layers[1].attention.reduce"), node.inputs
    assert (node.layer, node.name, dict(node.weights)) == (1, "layers[1].attention.residual", {})
    return b + a


def scaled(a, b, *, node):
    return (a + b) * 1.5
"""


def test_a_function_in_place_of_one_node(tmp_path: Path, qwen3_moe: Path) -> None:
    node = "layers[1].attention.residual"
    assert report_of(tmp_path, qwen3_moe, ONE_NODE, "add", nodes=node).verdict.status == "pass"
    report = report_of(tmp_path, qwen3_moe, ONE_NODE, "scaled", nodes=node)
    assert [root.node for root in report.roots] == [node]
    assert report.toggles[0].restores_all


BY_HEADS = """
import torch


def tables(positions, *, node):
    rope = node.config["rope_parameters"]
    inverse = 1 / rope["rope_theta"] ** (torch.arange(0, node.params["rotary"]["dim"], 2).float() / 32)
    angles = torch.cat([positions[..., None].float() * inverse] * 2, -1)
    return angles.cos().to(node.dtype), angles.sin().to(node.dtype)


def turn(q, k, cos, sin, *, node):
    def turned(x):
        x = x.transpose(1, 2)
        half = torch.cat((-x[..., x.shape[-1] // 2:], x[..., : x.shape[-1] // 2]), -1)
        return x * cos.unsqueeze(1) + half * sin.unsqueeze(1)

    return turned(q), turned(k)
"""


@pytest.mark.parametrize(("nodes", "function"), [("rotary", "tables"), ("layers[*].attention.rope", "turn")])
def test_a_function_fed_by_the_graph_itself_and_one_that_returns_heads(
    tmp_path: Path, qwen3_moe: Path, nodes: str, function: str
) -> None:
    report = report_of(tmp_path, qwen3_moe, BY_HEADS, function, nodes=nodes)
    assert (report.verdict.status, report.verdict.reason, report.roots) == ("pass", "all bits are equal", ())


ATTEND = """
import torch


def attend(q, k, v, mask, *, node):
    at = "layers[{}].attention.".format(node.layer)
    assert node.inputs == (at + "rope.q", at + "cache.k", at + "cache.v", "mask"), node.inputs
    repeats, tokens = q.shape[1] // k.shape[1], k.shape[2]
    k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    hidden = torch.ones(q.shape[2], tokens, dtype=torch.bool).triu(1 + tokens - q.shape[2])
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    scores = scores + torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, torch.finfo(q.dtype).min)
    y = torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)
    return y.transpose(1, 2).contiguous().flatten(2)

"""


@pytest.mark.parametrize("schedule", [{"micro_batch": 26}, {"schedule": {"decode": {"from": 5}}}], ids=str)
def test_a_function_in_place_of_attention_is_given_what_the_cache_gives(
    tmp_path: Path, qwen3_moe: Path, schedule: dict[str, Any]
) -> None:
    """And nothing more: not the keys and values as they were computed, unless some op reads them."""
    report = report_of(tmp_path, qwen3_moe, ATTEND, "attend", nodes="layers[*].attention.attend", candidate=schedule)
    toggle = next(toggle for toggle in report.toggles if toggle.name.endswith(":impl"))
    assert (report.verdict.status, toggle.had_no_effect) == ("pass", True)


WRONG = {
    "raises": ("def f(x, *, node):\n    raise RuntimeError('no kernel for this shape')", "RuntimeError: no kernel"),
    "no tensor": ("def f(x, *, node):\n    return 1", "returned int; expected 1 tensor(s), as combine."),
    "two": ("def f(x, *, node):\n    return x, x", "returned Tensor, Tensor; expected 1 tensor(s)"),
    "shape": ("def f(x, *, node):\n    return x[:1]", "expected [26, 8, ...] on cpu, as its inputs."),
    "last axis": (
        "def f(x, *, node):\n    return x[..., :-1]",
        "op combine on the other side gives torch.bfloat16 [26, 8, 64]",
    ),
    "missing": ("", "'f' does not exist in module"),
    "no function": ("f = 3", "'f' is not callable in module"),
    "syntax": ("def f(:", "SyntaxError"),
    "import": ("import not_a_module_at_all", "ModuleNotFoundError: No module named 'not_a_module_at_all'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_function_that_fails_is_told_with_its_place(tmp_path: Path, qwen3_moe: Path, case: str) -> None:
    code, message = WRONG[case]
    path = recipe_with(tmp_path, qwen3_moe, code, "f")
    with pytest.raises(SpecError) as caught:
        bisect(path, device="cpu", options=Options(allow_code=True))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_code_is_not_run_without_leave(tmp_path: Path, qwen3_moe: Path) -> None:
    marker = tmp_path / "ran"
    code = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef f(x, *, node):\n    return x"
    with pytest.raises(SpecError, match="add --allow-code"):
        bisect(recipe_with(tmp_path, qwen3_moe, code, "f"), device="cpu")
    assert not marker.exists()


def test_nodes_of_which_several_are_read_outside_are_refused(tmp_path: Path, qwen3_moe: Path) -> None:
    nodes = ["layers[*].moe.gate", "layers[*].moe.router"]
    path = recipe_with(tmp_path, qwen3_moe, "def f(x, *, node):\n    return x", "f", nodes=["layers[*].moe"])
    assert prepare(path, device="cpu", options=Options(allow_code=True)).toggles, "a whole block is a region"
    path = recipe_with(tmp_path, qwen3_moe, "", "f", nodes=[*nodes, "layers[*].moe.residual"])
    (tmp_path / next(tmp_path.glob("kernels_*.py"))).write_text("def f(x, *, node):\n    return x", "utf-8")
    with pytest.raises(SpecError, match="are read outside"):
        prepare(path, device="cpu", options=Options(allow_code=True))
