"""A user's function with a fault is told what it does amiss: on equal bits only, with the values solved for."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity import bisect
from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.nearest.text import nearest_lines
from moeparity.bisection.prepare import Options
from tests.opened import opened
from tests.planted.places import random_tokens, write_recipe

CODE = '''
import torch
import torch.nn.functional as F
from pathlib import Path
from safetensors import safe_open

LAYER = 1


def of_layer(number, name):
    with safe_open(str(Path(__file__).with_name("weights")), framework="pt") as file:
        return file.get_tensor(f"model.layers.{number}.{name}")


def rms(x, weight, eps=1e-6):
    rows = x.float()
    return weight * (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def experts_of(x, ids, node, change):
    """Every expert's rows as transformers' eager loop has them; `change` of the weights of each, by number."""
    gate_up, down = node.weights["experts.gate_up"], node.weights["experts.down"]
    rows, flat = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    out = torch.zeros(*flat.shape, x.shape[-1], dtype=x.dtype)
    for e in range(gate_up.shape[0]):
        token, slot = torch.where(flat == e)
        if len(token):
            g_u, d = change(e, gate_up, down) if node.layer == LAYER else (gate_up[e], down[e])
            gate, up = F.linear(rows[token], g_u).chunk(2, dim=-1)
            out[token, slot] = F.linear(F.silu(gate) * up, d)
    return out.view(*ids.shape, x.shape[-1])


def exchanged(x, ids, _, *, node):
    half = node.weights["experts.gate_up"].shape[1] // 2
    return experts_of(x, ids, node, lambda e, g, d: (torch.cat((g[e, half:], g[e, :half])), d[e]))


def another_expert(x, ids, _, *, node):
    return experts_of(x, ids, node, lambda e, g, d: (g[5], d[5]) if e == 3 else (g[e], d[e]))


def permuted(x, ids, _, *, node):
    order = [7, 3, *range(2, 7), 1, 0, *range(9, 16), 8]
    return experts_of(x, ids, node, lambda e, g, d: (g[order[e]], d[order[e]]))


def scaled(x, ids, _, *, node):
    return experts_of(x, ids, node, lambda e, g, d: (g[3] * 0.75, d[3] * 0.75) if e == 3 else (g[e], d[e]))


def twice(x, *, node):
    weight = node.weights["q_norm.weight"]
    once = rms(x, weight)
    return rms(once, weight) if node.layer == LAYER else once


def transposed(x, *, node):
    w = node.weights["o_proj.weight"]
    return F.linear(x, w.T.contiguous().view(w.shape) if node.layer == LAYER else w)


def stale(x, *, node):
    w = node.weights["o_proj.weight"]
    return F.linear(x, of_layer(2, "self_attn.o_proj.weight") if node.layer == LAYER else w)


def nonsense(x, *, node):
    w = node.weights["o_proj.weight"]
    return F.linear(x, w * 1.5 + 0.01 if node.layer == LAYER else w)


def routed(logits, *, node):
    scores = F.softmax(logits, dim=-1, dtype=torch.float32)
    weights, ids = torch.topk(scores, 4, dim=-1)
    if node.layer != LAYER:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights.to(logits.dtype)
'''
EXPERTS, Q_NORM, O_PROJ = "layers[*].moe.experts", "layers[*].attention.q_norm", "layers[*].attention.o_proj"


def asked(folder: Path, checkpoint: Path, nodes: str, function: str) -> list[Nearest]:
    module = f"faulty_{function}_{abs(hash(str(folder)))}"
    (folder / f"{module}.py").write_text(CODE, "utf-8")
    (folder / "weights").symlink_to(checkpoint / "model.safetensors")
    tokens = {"input_ids": random_tokens(4, 12)}
    own = {"impl": [{"nodes": nodes, "call": f"{module}:{function}"}], "micro_batch": 2}
    recipe = write_recipe(folder, checkpoint, tokens, {"micro_batch": 2}, own)
    options = Options(allow_code=True, floor=False)
    return list(bisect(recipe, device="cpu", options=options, opener=opened).nearest)


@pytest.mark.parametrize(
    ("nodes", "function", "sentence"),
    [
        (EXPERTS, "exchanged", "gate and up of the experts are exchanged"),
        (EXPERTS, "another_expert", "expert 3 has the weights of expert 5"),
        (EXPERTS, "permuted", "the experts lie in the order 7 3 2 3 4 5 6 1 0 9 10 11 12 13 14 15"),
        (Q_NORM, "twice", "queries or keys are normalised twice"),
        (O_PROJ, "transposed", "the weights are read as if their transpose lay there"),
        (O_PROJ, "stale", "the weights are those of layer 2"),
        ("layers[*].moe.router", "routed", "the chosen scores are divided by their sum where they must not be"),
    ],
)
def test_a_fault_is_said_in_words(tmp_path: Path, qwen3_moe: Path, nodes: str, function: str, sentence: str) -> None:
    (answer,) = asked(tmp_path, qwen3_moe, nodes, function)
    assert answer.node == nodes.replace("*", "1")
    assert answer.explained
    assert answer.found[0].equal == 1
    assert answer.found[0].faults
    assert any(sentence in fault for fault in answer.found[0].faults), answer.found
    assert any(sentence in line for line in nearest_lines(answer))


def test_a_number_that_a_fault_leaves_open_is_solved_for(tmp_path: Path, qwen3_moe: Path) -> None:
    (answer,) = asked(tmp_path, qwen3_moe, EXPERTS, "scaled")
    assert answer.found[0].exact
    assert answer.found[0].choices == ("layers[1].moe.experts:fault=expert-scaled(expert=3, factor=0.75)",)
    assert answer.found[0].faults == ("the weights of expert 3 are multiplied by 0.75",)


def test_what_is_no_fault_that_is_known_is_called_none(tmp_path: Path, qwen3_moe: Path) -> None:
    (answer,) = asked(tmp_path, qwen3_moe, O_PROJ, "nonsense")
    assert not answer.explained
    assert not any("which is a fault" in line for line in nearest_lines(answer))
