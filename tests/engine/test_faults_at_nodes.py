"""Faults that no checkpoint can have: what they make of a node, against plain torch on the values of a fresh run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import make_random
from tests.engine.faulty import Values, fault, plan_of, walk
from tests.opened import opened
from tests.planted.places import random_tokens
from tests.small_models import SMALL

TESTED = {
    "qk-norm-missing",
    "qk-norm-twice",
    "norm-missing",
    "norm-twice",
    "clip-missing",
    "shared-expert-missing",
    "shared-expert-twice",
    "shared-expert-gate-missing",
    "residual-missing",
    "temperature-in-the-head",
    "capacity-drop",
    "rope-offset",
    "mask-shifted",
    "causal-shifted",
    "padding-seen",
    "sinks-missing",
}
IDS = random_tokens(2, 11, vocab=300)
MASK = torch.ones(2, 11, dtype=torch.bool)
MASK[1, :4] = False
LAYER = "layers[1]."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    names = ("qwen3_moe", "qwen2_moe", "deepseek_v3", "gpt_oss")
    fields = {name: SMALL[name] for name in names} | {"clipped": {**SMALL["olmoe"], "clip_qkv": 0.5}}
    return {name: opened(make_random(of, tmp_path_factory.mktemp(name))) for name, of in fields.items()}


def both(
    model: Model, name: str, nodes: str, values: Mapping[str, float] | None = None, ids: Tensor = IDS
) -> tuple[Values, Values]:
    """What a fresh plan and one with a fault compute, in one pass."""
    plans = {"fresh": plan_of(model), "faulty": plan_of(model, [fault(name, nodes, values=values)])}
    walked, _ = walk(model, plans, ids, mask=MASK if ids is IDS else None)
    return walked["fresh"], walked["faulty"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def weight_of(model: Model, node: str) -> Tensor:
    return model.weights.node(next(n for n in model.graph.nodes if n.name == node), "bf16")["weight"]


@pytest.mark.parametrize(
    ("name", "node", "read"), [("qk-norm-missing", "q_norm", "q_proj"), ("norm-missing", "norm", "")]
)
def test_a_norm_left_out_hands_on_what_it_reads(models: dict[str, Model], name: str, node: str, read: str) -> None:
    node = f"{LAYER}attention.{node}"
    fresh, faulty = both(models["qwen3_moe"], name, node)
    before = fresh[f"{LAYER}attention.{read}"] if read else fresh["layers[0].moe.residual"]
    assert same_bits(faulty[node], before)
    assert not same_bits(fresh[node], before)


@pytest.mark.parametrize(
    ("model", "name", "node"),
    [
        ("qwen3_moe", "qk-norm-twice", "k_norm"),
        ("deepseek_v3", "qk-norm-twice", "q_a_norm"),
        ("qwen2_moe", "norm-twice", "norm"),
    ],
)
def test_a_norm_applied_twice_norms_its_own_result(models: dict[str, Model], model: str, name: str, node: str) -> None:
    node = f"{LAYER}attention.{node}"
    fresh, faulty = both(models[model], name, node)
    eps = next(n for n in models[model].graph.nodes if n.name == node).params["eps"]
    assert same_bits(faulty[node], rms_norm(fresh[node], weight_of(models[model], node), eps))


def test_a_clip_left_out_hands_on_what_it_reads(models: dict[str, Model]) -> None:
    fresh, faulty = both(models["clipped"], "clip-missing", f"{LAYER}attention.v_clip")
    assert same_bits(faulty[f"{LAYER}attention.v_clip"], fresh[f"{LAYER}attention.v_proj"])
    assert float(faulty[f"{LAYER}attention.v_clip"].abs().max()) > 0.5


def test_the_shared_expert_left_out_leaves_the_routed_sum(models: dict[str, Model]) -> None:
    fresh, faulty = both(models["deepseek_v3"], "shared-expert-missing", f"{LAYER}moe")
    assert same_bits(faulty[f"{LAYER}moe.shared_add"], fresh[f"{LAYER}moe.combine_reduce"])


@pytest.mark.parametrize(("model", "shared"), [("deepseek_v3", "shared_reduce"), ("qwen2_moe", "shared")])
def test_the_shared_expert_twice_is_added_after_each_rounding(
    models: dict[str, Model], model: str, shared: str
) -> None:
    fresh, faulty = both(models[model], "shared-expert-twice", f"{LAYER}moe")
    routed, shared_rows = fresh[f"{LAYER}moe.combine_reduce"], fresh[f"{LAYER}moe.{shared}"]
    assert same_bits(faulty[f"{LAYER}moe.shared_add"], (routed + shared_rows) + shared_rows)


def test_the_shared_experts_gate_left_out_leaves_its_sum(models: dict[str, Model]) -> None:
    fresh, faulty = both(models["qwen2_moe"], "shared-expert-gate-missing", f"{LAYER}moe")
    assert same_bits(faulty[f"{LAYER}moe.shared"], fresh[f"{LAYER}moe.shared_reduce"])


def test_a_residual_left_out_leaves_the_stream(models: dict[str, Model]) -> None:
    fresh, faulty = both(models["qwen3_moe"], "residual-missing", f"{LAYER}attention")
    assert same_bits(faulty[f"{LAYER}attention.residual"], fresh["layers[0].moe.residual"])


def test_a_temperature_in_the_head_divides_logits(models: dict[str, Model]) -> None:
    fresh, faulty = both(models["gpt_oss"], "temperature-in-the-head", "lm_head", {"temperature": 0.7})
    assert same_bits(faulty["lm_head"], (fresh["lm_head"].float() / 0.7).to(torch.bfloat16))


@pytest.mark.parametrize("capacity", [1, 4])
def test_beyond_its_capacity_an_expert_drops_tokens(models: dict[str, Model], capacity: int) -> None:
    fresh, faulty = both(models["qwen3_moe"], "capacity-drop", f"{LAYER}moe.router", {"capacity": capacity})
    ids, weights = (fresh[f"{LAYER}moe.router.{port}"] for port in ("ids", "weights"))
    expected, counts = weights.clone(), dict[int, int]()
    for row in range(2):
        for token in range(11):
            for slot in range(4):
                expert = int(ids[row, token, slot])
                counts[expert] = counts.get(expert, 0) + 1
                if counts[expert] > capacity:
                    expected[row, token, slot] = 0
    assert same_bits(faulty[f"{LAYER}moe.router.weights"], expected)
    assert same_bits(faulty[f"{LAYER}moe.router.ids"], ids)
    assert 0 < int((expected == 0).sum()) < expected.numel()


def test_positions_counted_from_another_number_turn_further(models: dict[str, Model]) -> None:
    longer = random_tokens(2, 14, vocab=300)
    fresh, _ = walk(models["qwen3_moe"], {"fresh": plan_of(models["qwen3_moe"])}, longer)
    _, faulty = both(models["qwen3_moe"], "rope-offset", "rotary", {"offset": 3}, longer[:, :11])
    assert same_bits(faulty["rotary.cos"], fresh["fresh"]["rotary.cos"][:, 3:])


def eager(values: Values, real: Tensor, window: int | None, ahead: int = 0) -> Tensor:
    """Eager attention of layer 1 by hand, over tokens that a mask [B, T] says are seen, and so many behind a query."""
    q, k, v = (values[f"{LAYER}attention.{name}"] for name in ("rope.q", "cache.k", "cache.v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    rows, columns = torch.arange(11)[:, None], torch.arange(11)[None]
    visible = (columns <= rows + ahead) & (rows - columns < (window or 99))
    bias = torch.where(visible & real[:, None, None, :], 0.0, torch.finfo(scores.dtype).min).to(scores.dtype)
    probabilities = F.softmax(scores + bias, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(probabilities, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("model", "name", "values", "real"),
    [
        ("qwen3_moe", "padding-seen", {}, torch.ones_like(MASK)),
        ("qwen3_moe", "mask-shifted", {"offset": 1}, MASK[:, [0, *range(10)]]),
        ("qwen2_moe", "mask-shifted", {"offset": -2}, MASK[:, [*range(2, 11), 10, 10]]),
        ("gpt_oss", "sinks-missing", {}, MASK),
    ],
)
def test_attention_sees_what_the_mask_says(
    models: dict[str, Model], model: str, name: str, values: dict[str, int], real: Tensor
) -> None:
    node = f"{LAYER}attention.attend"
    fresh, faulty = both(models[model], name, node, values)
    window = next(n for n in models[model].graph.nodes if n.name == node).params["window"]
    assert same_bits(faulty[node], eager(faulty, real, window))
    assert not same_bits(faulty[node], fresh[node])


@pytest.mark.parametrize(("model", "ahead"), [("qwen3_moe", 1), ("qwen3_moe", -1), ("qwen2_moe", 2)])
def test_a_causal_mask_that_is_moved_shows_other_keys(models: dict[str, Model], model: str, ahead: int) -> None:
    node = f"{LAYER}attention.attend"
    fresh, faulty = both(models[model], "causal-shifted", node, {"ahead": ahead})
    window = next(n for n in models[model].graph.nodes if n.name == node).params["window"]
    assert same_bits(faulty[node], eager(faulty, MASK, window, ahead))
    assert not same_bits(faulty[node], fresh[node])
