"""A user's function with a fault is told what it does amiss: on equal bits only, with the values solved for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from moeparity import bisect
from moeparity.bisection.nearest.data import Nearest
from moeparity.bisection.nearest.show import nearest_lines
from moeparity.bisection.options import Options
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

CODE = '''
import torch
import torch.nn.functional as F
from pathlib import Path
from safetensors import safe_open
from tests.two_layers import two_layers

qwen3_moe = two_layers("qwen3_moe")

def of_layer(number, name):
    with safe_open(str(Path(__file__).with_name("weights")), framework="pt") as file:
        return file.get_tensor(f"model.layers.{number}.{name}")


def rms(x, weight, eps=1e-6):
    rows = x.float()
    return weight * (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def experts(x, ids, _, *, node):
    """Every expert's rows as transformers' eager loop has them; another fault in each layer."""
    gate_up, down = node.weights["experts.gate_up"], node.weights["experts.down"]
    rows, flat = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    out = torch.zeros(*flat.shape, x.shape[-1], dtype=x.dtype)
    order = [7, 3, *range(2, 7), 1, 0, *range(9, 16), 8]
    for e in range(gate_up.shape[0]):
        token, slot = torch.where(flat == e)
        if len(token):
            taken = {1: {3: 5}.get(e, e), 2: order[e]}.get(node.layer, e)
            gate, up = F.linear(rows[token], gate_up[taken]).chunk(2, dim=-1)
            gate, up = (up, gate) if node.layer == 0 else (gate, up)
            out[token, slot] = F.linear(F.silu(gate) * up, down[taken])
    return out.view(*ids.shape, x.shape[-1])


def scaled(x, ids, _, *, node):
    gate_up, down = node.weights["experts.gate_up"], node.weights["experts.down"]
    rows, flat = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    out = torch.zeros(*flat.shape, x.shape[-1], dtype=x.dtype)
    for e in range(gate_up.shape[0]):
        token, slot = torch.where(flat == e)
        if len(token):
            factor = 0.75 if e == 3 and node.layer == 1 else 1
            gate, up = F.linear(rows[token], gate_up[e] * factor).chunk(2, dim=-1)
            out[token, slot] = F.linear(F.silu(gate) * up, down[e] * factor)
    return out.view(*ids.shape, x.shape[-1])


def q_norm(x, *, node):
    weight = node.weights["q_norm.weight"]
    once = rms(x, weight)
    return rms(once, weight) if node.layer == 1 else once


def o_proj(x, *, node):
    """Transposed, another layer's, and what is no fault that has a name."""
    w = node.weights["o_proj.weight"]
    if node.layer == 0:
        return F.linear(x, w.T.contiguous().view(w.shape))
    return F.linear(x, of_layer(2, "self_attn.o_proj.weight") if node.layer == 1 else w * 1.5 + 0.01)


def router(logits, *, node):
    scores = F.softmax(logits, dim=-1, dtype=torch.float32)
    weights, ids = torch.topk(scores, 4, dim=-1)
    if node.layer != 1:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights.to(logits.dtype)
'''
NODES = ("moe.experts", "attention.q_norm", "attention.o_proj", "moe.router")


def answers_of(folder: Path, checkpoint: Path, functions: Mapping[str, str]) -> dict[str, Nearest]:
    """What is said of functions at the nodes that they stand at, by node."""
    module = f"faulty_{folder.name}"
    (folder / f"{module}.py").write_text(CODE, "utf-8")
    (folder / "weights").symlink_to(checkpoint / "model.safetensors")
    impl = [{"nodes": f"layers[*].{node}", "call": f"{module}:{function}"} for node, function in functions.items()]
    side = {"micro_batch": 2}
    recipe = write_recipe(folder, checkpoint, {"input_ids": random_tokens(4, 12)}, side, {**side, "impl": impl})
    options = Options(allow_code=True, floor=False)
    return {answer.node: answer for answer in bisect(recipe, device="cpu", options=options, opener=opened).nearest}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, qwen3_moe: Path) -> dict[str, Nearest]:
    """All functions in one run, in which most layers have a fault of each."""
    functions = {node: node.partition(".")[2] for node in NODES}
    return answers_of(tmp_path_factory.mktemp("all"), qwen3_moe, functions)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ("layers[0].moe.experts", "gate and up of the experts are exchanged"),
        ("layers[1].moe.experts", "expert 3 has the weights of expert 5"),
        ("layers[2].moe.experts", "the experts lie in the order 7 3 2 3 4 5 6 1 0 9 10 11 12 13 14 15"),
        ("layers[1].attention.q_norm", "queries or keys are normalised twice"),
        ("layers[0].attention.o_proj", "the weights are read as if their transpose lay there"),
        ("layers[1].attention.o_proj", "the weights are those of layer 2"),
        ("layers[1].moe.router", "the chosen scores are divided by their sum where they must not be"),
    ],
)
def test_a_fault_is_said_in_words(answers: dict[str, Nearest], node: str, sentence: str) -> None:
    answer = answers[node]
    assert answer.explained
    assert answer.found[0].equal == 1
    assert any(sentence in fault for fault in answer.found[0].faults), answer.found
    assert any(sentence in line for line in nearest_lines(answer))


def test_nothing_is_said_where_there_is_no_fault(answers: dict[str, Nearest]) -> None:
    assert set(answers) == {
        *(f"layers[{layer}].moe.experts" for layer in range(3)),
        *(f"layers[{layer}].attention.o_proj" for layer in range(3)),
        "layers[1].attention.q_norm",
        "layers[1].moe.router",
    }


def test_what_is_no_fault_that_is_known_is_called_none(answers: dict[str, Nearest]) -> None:
    answer = answers["layers[2].attention.o_proj"]
    assert not answer.explained
    assert not any("which is a fault" in line for line in nearest_lines(answer))


def test_a_number_that_a_fault_leaves_open_is_solved_for(tmp_path: Path, qwen3_moe: Path) -> None:
    (answer,) = answers_of(tmp_path, qwen3_moe, {"moe.experts": "scaled"}).values()
    assert answer.found[0].exact
    assert answer.found[0].choices == ("layers[1].moe.experts:fault=expert-scaled(expert=3, factor=0.75)",)
    assert answer.found[0].faults == ("the weights of expert 3 are multiplied by 0.75",)
