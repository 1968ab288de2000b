"""Faults that no checkpoint can have: what they make of a node, against plain torch on the values of a fresh run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.errors import SpecError
from moeparity.inputs.model import Model
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.steps import Schedule, Span, Step
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
    "gate-missing",
    "multiplier-missing",
    "router-cap-missing",
    "shared-expert-gate-missing",
    "shared-expert-gate-twice",
    "residual-missing",
    "temperature-in-the-head",
    "capacity-drop",
    "experts-per-token",
    "rope-offset",
    "mask-shifted",
    "causal-shifted",
    "padding-seen",
    "pack-seen",
    "index-relu-missing",
    "index-unused",
    "position-scale-missing",
    "scores-on-outputs",
    "chunks-slide",
    "sinks-missing",
    "sinks-twice",
    "rotary-width",
    "rope-width",
    "softmax-scale",
    "softmax-scale-of-another-width",
    "softmax-scale-missing",
    "softmax-scale-twice",
    # Of a model of its own: tests/engine/test_states.py.
    "state-unreset",
    # Of a model with an adapter: tests/engine/test_adapter_faults.py.
    "adapter-missing",
    "adapter-counted-by-ranks",
    "adapter-of-another-step",
    "adapter-scaled-by-other-rank",
    "adapter-twice",
}
IDS = random_tokens(2, 11, vocab=300)
MASK = torch.ones(2, 11, dtype=torch.bool)
MASK[1, :4] = False
LAYER = "layers[1]."


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    names = (
        "qwen3_moe",
        "qwen2_moe",
        "deepseek_v3",
        "deepseek_v32",
        "gpt_oss",
        "mistral4",
        "llama4",
        "laguna",
        "longcat_flash",
    )
    fields = {name: SMALL[name] for name in names} | {"clipped": {**SMALL["olmoe"], "clip_qkv": 0.5}}
    fields["convolved"] = {**SMALL["lfm2_moe"], "layer_types": ["conv", "conv", "full_attention"]}
    fields["of_all_keys"] = {**SMALL["deepseek_v32"], "index_topk": 64}
    return {name: opened(make_random(of, tmp_path_factory.mktemp(name))) for name, of in fields.items()}


def plan_and_fault(
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
    fresh, faulty = plan_and_fault(models["qwen3_moe"], name, node)
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
    fresh, faulty = plan_and_fault(models[model], name, node)
    eps = next(n for n in models[model].graph.nodes if n.name == node).params["eps"]
    assert same_bits(faulty[node], rms_norm(fresh[node], weight_of(models[model], node), eps))


def test_attention_without_its_index_is_that_of_a_model_that_chooses_all_keys(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["deepseek_v32"], "index-unused", "layers[*].attention.attend")
    of_all_keys = models["of_all_keys"]
    dense, _ = walk(of_all_keys, {"fresh": plan_of(of_all_keys)}, IDS, mask=MASK)
    assert same_bits(faulty["lm_head"], dense["fresh"]["lm_head"])
    assert not same_bits(faulty["lm_head"], fresh["lm_head"])


def test_index_scores_without_relu(models: dict[str, Model]) -> None:
    """The keys of the largest sums of all scores, also the negative ones."""
    model, at = models["deepseek_v32"], f"{LAYER}attention."
    fresh, faulty = plan_and_fault(model, "index-relu-missing", f"{at}index")
    q, k, of_heads = (fresh[at + name].double() for name in ("index_rope.q", "index_rope.k", "index_weights"))
    total = torch.einsum("bth,bhts->bts", of_heads, q @ k.transpose(-1, -2))
    hidden = ~(MASK[:, None] & torch.ones(11, 11, dtype=torch.bool).tril())
    best = total.masked_fill(hidden, -torch.inf).topk(4)[1]
    ours = faulty[f"{at}index"]
    assert torch.equal(ours[0, 4:].sort(-1)[0], best[0, 4:].sort(-1)[0])
    assert not torch.equal(ours, fresh[f"{at}index"])


def test_queries_that_are_not_scaled_by_their_position(models: dict[str, Model]) -> None:
    node = f"{LAYER}attention.nope_scaled"
    fresh, faulty = plan_and_fault(models["mistral4"], "position-scale-missing", node)
    assert same_bits(faulty[node], fresh[f"{LAYER}attention.q_split.nope"])
    assert same_bits(faulty[node][:, :5], fresh[node][:, :5])
    assert not same_bits(faulty[node][:, 5], fresh[node][:, 5])


def test_a_gate_left_out_hands_on_what_it_multiplies(models: dict[str, Model]) -> None:
    at = f"{LAYER}convolution."
    for node, x in (("entered", "parts.x"), ("gated", "conv")):
        fresh, faulty = plan_and_fault(models["convolved"], "gate-missing", f"{at}{node}")
        assert same_bits(faulty[f"{at}{node}"], fresh[f"{at}{x}"])
        assert not same_bits(faulty[f"{at}{node}"], fresh[f"{at}{node}"])


def test_a_multiplier_left_out_hands_on_what_it_reads(models: dict[str, Model]) -> None:
    at = f"{LAYER}second_attention."
    fresh, faulty = plan_and_fault(models["longcat_flash"], "multiplier-missing", f"{at}kv_scaled")
    assert same_bits(faulty[f"{at}kv_scaled"], fresh[f"{at}kv_a_norm"])
    assert not same_bits(faulty[f"{at}kv_scaled"], fresh[f"{at}kv_scaled"])


def test_logits_of_a_router_that_are_not_capped(models: dict[str, Model]) -> None:
    at = f"{LAYER}moe."
    fresh, faulty = plan_and_fault(models["laguna"], "router-cap-missing", f"{at}router")
    logits, ids = fresh[f"{at}gate"].float(), faulty[f"{at}router.ids"]
    chosen = logits.sigmoid().gather(-1, ids)
    assert same_bits(faulty[f"{at}router.weights"], (chosen / chosen.sum(-1, keepdim=True)).bfloat16())
    capped = (torch.tanh(logits / 1.5) * 1.5).sigmoid().gather(-1, fresh[f"{at}router.ids"])
    assert same_bits(fresh[f"{at}router.weights"], (capped / capped.sum(-1, keepdim=True)).bfloat16())
    assert not same_bits(faulty[f"{at}router.weights"], fresh[f"{at}router.weights"])


def test_scores_on_the_outputs_of_experts(models: dict[str, Model]) -> None:
    """The same rows of x without its weight, then times it, as a scalar evaluation in fp64 has it."""
    model, at = models["llama4"], f"{LAYER}moe."
    fresh, faulty = plan_and_fault(model, "scores-on-outputs", f"{at}experts")
    weights = model.weights.node(next(n for n in model.graph.nodes if n.name == f"{at}experts"), "bf16")
    for b, t in ((0, 0), (0, 9), (1, 6)):
        expert, score = int(fresh[f"{at}router.ids"][b, t, 0]), float(fresh[f"{at}router.weights"][b, t, 0])
        gate_up, down = (weights[name][expert].double() for name in ("gate_up", "down"))

        def row(x: Tensor, gate_up: Tensor = gate_up, down: Tensor = down) -> Tensor:
            gate, up = (gate_up @ x).chunk(2)
            return down @ (F.silu(gate) * up)

        x = fresh[f"{at}norm"][b, t].double()
        torch.testing.assert_close(fresh[f"{at}experts"][b, t, 0].double(), row(x * score), rtol=0.05, atol=0.01)
        torch.testing.assert_close(faulty[f"{at}experts"][b, t, 0].double(), row(x) * score, rtol=0.05, atol=0.01)
    assert not same_bits(faulty[f"{at}experts"], fresh[f"{at}experts"])


def test_a_window_in_place_of_chunks(models: dict[str, Model]) -> None:
    """Chunks have five tokens, and begin behind the padding."""
    node = "layers[0].attention.attend"
    fresh, faulty = plan_and_fault(models["llama4"], "chunks-slide", node)
    differs = (faulty[node] != fresh[node]).any(-1)
    real = MASK.cumsum(-1) - 1
    assert torch.equal(differs & MASK, MASK & (real >= 5) & (real % 5 < 4))


def test_a_clip_left_out_hands_on_what_it_reads(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["clipped"], "clip-missing", f"{LAYER}attention.v_clip")
    assert same_bits(faulty[f"{LAYER}attention.v_clip"], fresh[f"{LAYER}attention.v_proj"])
    assert float(faulty[f"{LAYER}attention.v_clip"].abs().max()) > 0.5


def test_the_shared_expert_left_out_leaves_the_routed_sum(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["deepseek_v3"], "shared-expert-missing", f"{LAYER}moe")
    assert same_bits(faulty[f"{LAYER}moe.shared_add"], fresh[f"{LAYER}moe.combine_reduce"])


@pytest.mark.parametrize(("model", "shared"), [("deepseek_v3", "shared_reduce"), ("qwen2_moe", "shared")])
def test_the_shared_expert_twice_is_added_after_each_rounding(
    models: dict[str, Model], model: str, shared: str
) -> None:
    fresh, faulty = plan_and_fault(models[model], "shared-expert-twice", f"{LAYER}moe")
    routed, shared_rows = fresh[f"{LAYER}moe.combine_reduce"], fresh[f"{LAYER}moe.{shared}"]
    assert same_bits(faulty[f"{LAYER}moe.shared_add"], (routed + shared_rows) + shared_rows)


def test_the_shared_experts_gate_left_out_leaves_its_sum(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["qwen2_moe"], "shared-expert-gate-missing", f"{LAYER}moe")
    assert same_bits(faulty[f"{LAYER}moe.shared"], fresh[f"{LAYER}moe.shared_reduce"])


def test_the_shared_experts_gate_applied_twice_rounds_each_time(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["qwen2_moe"], "shared-expert-gate-twice", f"{LAYER}moe")
    gate = fresh[f"{LAYER}moe.shared_gate"].sigmoid()
    assert same_bits(faulty[f"{LAYER}moe.shared"], gate * (gate * fresh[f"{LAYER}moe.shared_reduce"]))


def test_a_residual_left_out_leaves_the_stream(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["qwen3_moe"], "residual-missing", f"{LAYER}attention")
    assert same_bits(faulty[f"{LAYER}attention.residual"], fresh["layers[0].moe.residual"])


def test_a_temperature_in_the_head_divides_logits(models: dict[str, Model]) -> None:
    fresh, faulty = plan_and_fault(models["gpt_oss"], "temperature-in-the-head", "lm_head", {"temperature": 0.7})
    assert same_bits(faulty["lm_head"], (fresh["lm_head"].float() / 0.7).to(torch.bfloat16))


@pytest.mark.parametrize("capacity", [1, 4])
def test_beyond_its_capacity_an_expert_drops_tokens(models: dict[str, Model], capacity: int) -> None:
    fresh, faulty = plan_and_fault(models["qwen3_moe"], "capacity-drop", f"{LAYER}moe.router", {"capacity": capacity})
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


@pytest.mark.parametrize("model", ["qwen3_moe", "qwen2_moe", "deepseek_v3"])
def test_a_token_goes_to_fewer_experts(models: dict[str, Model], model: str) -> None:
    """Those of the smallest weights are left out; where the router renormalises, the sum of weights stays."""
    fresh, faulty = plan_and_fault(models[model], "experts-per-token", f"{LAYER}moe.router", {"count": 3})
    ids, weights = (fresh[f"{LAYER}moe.router.{port}"] for port in ("ids", "weights"))
    (renormalizes,) = {node.params["renormalize"] for node in models[model].graph.nodes if node.op.role.routes}
    expected = weights.clone()
    for row in expected.flatten(0, 1):
        total = row.float().sum()
        row[row.argmin()] = 0
        if renormalizes:
            row.copy_(row.float() * (total / row.float().sum()))
    assert same_bits(faulty[f"{LAYER}moe.router.weights"], expected)
    assert same_bits(faulty[f"{LAYER}moe.router.ids"], ids)


def test_positions_counted_from_another_number_turn_further(models: dict[str, Model]) -> None:
    longer = random_tokens(2, 14, vocab=300)
    fresh, _ = walk(models["qwen3_moe"], {"fresh": plan_of(models["qwen3_moe"])}, longer)
    _, faulty = plan_and_fault(models["qwen3_moe"], "rope-offset", "rotary", {"offset": 3}, longer[:, :11])
    assert same_bits(faulty["rotary.cos"], fresh["fresh"]["rotary.cos"][:, 3:])


def turned(x: Tensor, width: int, base: float, of: int) -> Tensor:
    """The first columns of x [B, T, H, D] rotated, by the frequencies of so many columns; [B, H, T, D]."""
    inverse = 1.0 / base ** (torch.arange(0, width, 2).float() / of)
    angles = torch.cat([torch.arange(x.shape[1])[:, None].float() * inverse] * 2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    x = x.transpose(1, 2)
    first, rest = x[..., :width], x[..., width:]
    half = torch.cat((-first[..., width // 2 :], first[..., : width // 2]), -1)
    return torch.cat((first * cos + half * sin, rest), -1)


@pytest.mark.parametrize(("name", "node"), [("rotary-width", "rotary"), ("rope-width", f"{LAYER}attention.rope")])
def test_a_wrong_share_of_a_head_is_rotated(models: dict[str, Model], name: str, node: str) -> None:
    """The table made for fewer columns has other frequencies; a whole table used in part has the first ones."""
    model = models["qwen3_moe"]
    rotary = next(n for n in model.graph.nodes if n.name == "rotary")
    dim, base = rotary.params["dim"], rotary.params["rope"]["rope_theta"]
    fresh, faulty = plan_and_fault(model, name, node, {"width": dim // 2}, IDS[:, :10])
    q = faulty[f"{LAYER}attention.q_norm"]
    by_hand = turned(q, dim // 2, base, dim // 2 if name == "rotary-width" else dim)
    assert same_bits(faulty[f"{LAYER}attention.rope.q"], by_hand)
    assert not same_bits(fresh[f"{LAYER}attention.rope.q"], by_hand)


@pytest.mark.parametrize(("node", "width"), [("rotary", 3), ("rotary", 64), ("attention.rope", 3)])
def test_what_cannot_be_rotated_is_refused(models: dict[str, Model], node: str, width: int) -> None:
    name = "rotary-width" if node == "rotary" else "rope-width"
    with pytest.raises(SpecError, match="columns"):
        plan_and_fault(models["qwen3_moe"], name, node if node == "rotary" else f"{LAYER}{node}", {"width": width})


def eager(
    values: Values,
    real: Tensor,
    window: int | None,
    ahead: int = 0,
    scale: float | None = None,
    *,
    shifts: bool = False,
) -> Tensor:
    """Eager attention of layer 1 by hand, over tokens that a mask [B, T] says are seen, and so many behind a query;
    `shifts`: its softmax is of scores less their highest, in their dtype, as gpt-oss has it.
    """
    q, k, v = (values[f"{LAYER}attention.{name}"] for name in ("rope.q", "cache.k", "cache.v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    rows, columns = torch.arange(11)[:, None], torch.arange(11)[None]
    visible = (columns <= rows + ahead) & (rows - columns < (window or 99))
    bias = torch.where(visible & real[:, None, None, :], 0.0, torch.finfo(scores.dtype).min).to(scores.dtype)
    if shifts:
        probabilities = F.softmax(scores + bias - (scores + bias).amax(-1, keepdim=True), dim=-1)
    else:
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
    fresh, faulty = plan_and_fault(models[model], name, node, values)
    window = next(n for n in models[model].graph.nodes if n.name == node).params["window"]
    assert same_bits(faulty[node], eager(faulty, real, window, shifts=model == "gpt_oss"))
    assert not same_bits(faulty[node], fresh[node])


def test_a_pack_without_its_mask_is_one_row(models: dict[str, Model]) -> None:
    """Both sequences as one of 22 tokens, each behind its own first position."""
    node, model = f"{LAYER}attention.attend", models["qwen3_moe"]
    pack = Step(spans=(Span(0, 0, 11), Span(1, 0, 11)), shape="packed")
    plans = {"fresh": plan_of(model), "faulty": plan_of(model, [fault("pack-seen", node)])}
    walked, _ = walk(model, plans, IDS, schedule=Schedule(steps=(pack,)))
    faulty = walked["faulty"]
    names = ("rope.q", "cache.k", "cache.v")
    q, k, v = (torch.cat(faulty[f"{LAYER}attention.{name}"].unbind(0), 1)[None] for name in names)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    bias = torch.full((22, 22), torch.finfo(scores.dtype).min).triu(1).to(scores.dtype)
    probabilities = F.softmax(scores + bias, dim=-1, dtype=torch.float32).to(q.dtype)
    by_hand = torch.matmul(probabilities, v).transpose(1, 2).flatten(2)
    assert same_bits(faulty[node].flatten(0, 1)[None], by_hand)
    assert same_bits(faulty[node][0], walked["fresh"][node][0])
    assert not same_bits(faulty[node][1], walked["fresh"][node][1])


@pytest.mark.parametrize(("model", "ahead"), [("qwen3_moe", 1), ("qwen3_moe", -1), ("qwen2_moe", 2)])
def test_a_causal_mask_that_is_moved_shows_other_keys(models: dict[str, Model], model: str, ahead: int) -> None:
    node = f"{LAYER}attention.attend"
    fresh, faulty = plan_and_fault(models[model], "causal-shifted", node, {"ahead": ahead})
    window = next(n for n in models[model].graph.nodes if n.name == node).params["window"]
    assert same_bits(faulty[node], eager(faulty, MASK, window, ahead))
    assert not same_bits(faulty[node], fresh[node])


@pytest.mark.parametrize(
    ("name", "values", "scale"),
    [
        ("softmax-scale", {"factor": 0.5}, lambda width: 0.5 * width**-0.5),
        ("softmax-scale-of-another-width", {"width": 48}, lambda width: (width - width + 48) ** -0.5),
        ("softmax-scale-missing", {}, lambda width: width**0.0),
        ("softmax-scale-twice", {}, lambda width: (width**-0.5) ** 2),
    ],
)
def test_scores_are_scaled_by_another_number(
    models: dict[str, Model], name: str, values: dict[str, float], scale: Callable[[int], float]
) -> None:
    node = f"{LAYER}attention.attend"
    fresh, faulty = plan_and_fault(models["qwen3_moe"], name, node, values)
    assert same_bits(faulty[node], eager(faulty, MASK, None, scale=scale(faulty[f"{LAYER}attention.rope.q"].shape[-1])))
    assert not same_bits(faulty[node], fresh[node])


@pytest.mark.parametrize("name", ["softmax-scale-missing", "softmax-scale-twice"])
def test_the_scale_of_latent_attention_is_made_of_both_parts_of_a_query(models: dict[str, Model], name: str) -> None:
    """Missing as if each query were one wide; twice as if it were the square of that."""
    node = f"{LAYER}attention.attend"
    fresh, faulty = plan_and_fault(models["deepseek_v3"], name, node)
    width = sum(fresh[f"{LAYER}attention.{part}"].shape[-1] for part in ("q_split.nope", "rope.q"))
    square = {"width": 1 if name.endswith("missing") else width**2}
    _, same = plan_and_fault(models["deepseek_v3"], "softmax-scale-of-another-width", node, square)
    assert same_bits(faulty[node], same[node])
    assert not same_bits(faulty[node], fresh[node])


def test_a_sink_counted_twice_is_two_columns(models: dict[str, Model]) -> None:
    node = f"{LAYER}attention.attend"
    fresh, faulty = plan_and_fault(models["gpt_oss"], "sinks-twice", node)
    loaded = models["gpt_oss"].weights.node(next(n for n in models["gpt_oss"].graph.nodes if n.name == node), "bf16")
    q, k, v = (fresh[f"{LAYER}attention.{name}"] for name in ("rope.q", "cache.k", "cache.v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    hidden = ~(torch.ones(11, 11, dtype=torch.bool).tril() & MASK[:, None, None, :])
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    scores = scores + torch.zeros_like(hidden, dtype=scores.dtype).masked_fill(hidden, torch.finfo(scores.dtype).min)
    scores = torch.cat((scores, loaded["sinks"].view(1, -1, 1, 1).expand(*scores.shape[:3], 2)), -1)
    chances = F.softmax(scores - scores.amax(-1, keepdim=True), dim=-1, dtype=scores.dtype)[..., :-2]
    assert same_bits(faulty[node], torch.matmul(chances, v).transpose(1, 2).flatten(2))
    assert not same_bits(faulty[node], fresh[node])


@pytest.mark.parametrize(
    ("model", "name", "values"), [("qwen3_moe", "causal-shifted", {"ahead": 1}), ("gpt_oss", "sinks-twice", {})]
)
def test_an_online_softmax_refuses_what_its_tiles_cannot_have(
    models: dict[str, Model], model: str, name: str, values: dict[str, int]
) -> None:
    """The profile of an engine that attends by FlashAttention."""
    node = f"{LAYER}attention.attend"
    plan = plan_of(models[model], [fault(name, node, values=values)], "vllm")
    with pytest.raises(SpecError, match=r"implementation.* are asked for"):
        walk(models[model], {"faulty": plan}, IDS)
