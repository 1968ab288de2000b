"""What faults make of a checkpoint, written as one would write it by hand: tensors by name, or fields of config.json.

Nothing here knows of moeparity. Layer 1 is rewritten, which has experts in every model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Config = dict[str, Any]
LAYER, OTHER = "model.layers.1.", "model.layers.2."
EXPERTS = 16
ORDER = [*range(3, EXPERTS), 1, 0, 2]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault as a recipe states it, and the same by hand. `models`: on which small checkpoints.

    by_hand: changes tensors and config; `others` are the tensors of another checkpoint of the same model.
    aside: nodes that compute something else by hand, since there the weights before the node are exchanged.
    """

    name: str
    models: tuple[str, ...]
    by_hand: Callable[[Tensors, Config, Tensors], None]
    nodes: str | None = None
    layers: list[int] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    aside: tuple[str, ...] = ()


IN_FP8 = "_in_fp8"
"""Behind a small checkpoint's name: the same in fp8, a scale for each block of `BLOCK` x `BLOCK`."""
BLOCK = 16
IN_NVFP4 = "_in_nvfp4"
"""The same in NVFP4 as compressed-tensors has it."""
ALL = ("qwen3_moe", "deepseek_v3", "qwen2_moe", "gpt_oss")


def experts(tensors: Tensors, layer: str = LAYER) -> dict[int, list[str]] | None:
    """The names of each expert's tensors; None where one tensor holds all."""
    names = [name for name in tensors if name.startswith(f"{layer}mlp.experts.")]
    if any("gate_up_proj" in name for name in names):
        return None
    return {e: sorted(name for name in names if f".experts.{e}." in name) for e in range(EXPERTS)}


def stacks(layer: str = LAYER) -> list[str]:
    parts = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    return [f"{layer}mlp.experts.{part}" for part in parts]


def exchange_gate_and_up(tensors: Tensors, config: Config, others: Tensors) -> None:
    if experts(tensors) is None:
        for name in stacks()[:2]:
            swapped = tensors[name].clone()
            swapped[..., 0::2], swapped[..., 1::2] = tensors[name][..., 1::2], tensors[name][..., 0::2]
            tensors[name] = swapped
        return
    for expert in range(EXPERTS):
        gate, up = (f"{LAYER}mlp.experts.{expert}.{part}_proj.weight" for part in ("gate", "up"))
        tensors[gate], tensors[up] = tensors[up], tensors[gate]


def put_expert(tensors: Tensors, expert: int, source: Tensors, of: int, layer: str = LAYER) -> None:
    """Expert number `expert` of layer 1 gets what `source` has of expert number `of` of a layer."""
    names = experts(tensors)
    if names is None:
        for own_stack, theirs in zip(stacks(), stacks(layer), strict=True):
            tensors[own_stack] = tensors[own_stack].clone()
            tensors[own_stack][expert] = source[theirs][of]
        return
    for name in names[expert]:
        tensors[name] = source[name.replace(LAYER, layer).replace(f".experts.{expert}.", f".experts.{of}.")].clone()


def change_expert(tensors: Tensors, expert: int, change: Callable[[Tensor], Tensor]) -> None:
    names = experts(tensors)
    for name in stacks() if names is None else names[expert]:
        if names is None:
            tensors[name] = tensors[name].clone()
            tensors[name][expert] = change(tensors[name][expert])
        else:
            tensors[name] = change(tensors[name])


def permute(tensors: Tensors, config: Config, others: Tensors) -> None:
    before = dict(tensors)
    for place, expert in enumerate(ORDER):
        put_expert(tensors, place, before, expert)


def other_expert(tensors: Tensors, config: Config, others: Tensors) -> None:
    put_expert(tensors, 3, dict(tensors), 5)


def exchanged(tensors: Tensors, config: Config, others: Tensors) -> None:
    before = dict(tensors)
    put_expert(tensors, 3, before, 5)
    put_expert(tensors, 5, before, 3)


def tie_head(tensors: Tensors, config: Config, others: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def expert_of_layer(tensors: Tensors, config: Config, others: Tensors) -> None:
    put_expert(tensors, 3, dict(tensors), 3, OTHER)


def stale_expert(tensors: Tensors, config: Config, others: Tensors) -> None:
    put_expert(tensors, 3, others, 3)


def zero_expert(tensors: Tensors, config: Config, others: Tensors) -> None:
    change_expert(tensors, 3, torch.zeros_like)


def scale_expert(tensors: Tensors, config: Config, others: Tensors) -> None:
    change_expert(tensors, 3, lambda x: x * 0.75)


def part_of_expert(part: str, change: Callable[[Tensors, str], Tensor]) -> Callable[[Tensors, Config, Tensors], None]:
    """One matrix of expert 3, or two, made of the tensor of the same name by `change`."""

    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"{LAYER}mlp.experts.3.") and re.search(part, name)]:
            tensors[name] = change(tensors, name)

    return by_hand


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors, Config, Tensors], None]:
    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        tensors[name] = change(tensors[name])

    return by_hand


def of_layer_2(name: str) -> Callable[[Tensors, Config, Tensors], None]:
    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        for name_there in [name_there for name_there in tensors if name_there.startswith(LAYER + name)]:
            tensors[name_there] = tensors[name_there.replace(LAYER, OTHER)].clone()

    return by_hand


def stale(name: str) -> Callable[[Tensors, Config, Tensors], None]:
    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        tensors[LAYER + name] = others[LAYER + name].clone()

    return by_hand


def exchange_in_expert(tensors: Tensors, config: Config, others: Tensors) -> None:
    before = {name: x.clone() for name, x in tensors.items()}
    exchange_gate_and_up(tensors, config, others)
    for name in [name for name in tensors if name.startswith(f"{LAYER}mlp.experts.")]:
        if name in stacks():
            tensors[name] = before[name].index_copy(0, torch.tensor([3]), tensors[name][3:4])
        elif ".experts.3." not in name:
            tensors[name] = before[name]


def exchange_rows(tensors: Tensors, config: Config, others: Tensors) -> None:
    name = f"{LAYER}block_sparse_moe.input_linear.weight"
    gate, up = tensors[name].chunk(2, dim=1)
    tensors[name] = torch.cat((up, gate), dim=1)


def exchange_dense(tensors: Tensors, config: Config, others: Tensors) -> None:
    gate, up = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up"))
    tensors[gate], tensors[up] = tensors[up], tensors[gate]


def without_biases(tensors: Tensors, config: Config, others: Tensors) -> None:
    config["attention_bias"] = False
    for name in [name for name in tensors if ".self_attn." in name and name.endswith(".bias")]:
        del tensors[name]


def fields(**values: Any) -> Callable[[Tensors, Config, Tensors], None]:
    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        config.update(values)

    return by_hand


def of_rotary(mscale: float, mscale_all_dim: float, factor: float = 40) -> float:
    """What yarn multiplies cos and sin by: it stays, where the softmax scale alone is another."""
    return (0.1 * mscale * math.log(factor) + 1) / (0.1 * mscale_all_dim * math.log(factor) + 1)


def rope(**values: Any) -> Callable[[Tensors, Config, Tensors], None]:
    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        config["rope_parameters"] = {**config["rope_parameters"], **values}

    return by_hand


def transposed(x: Tensor) -> Tensor:
    """The numbers of a matrix column by column, read row by row."""
    rows, columns = x.shape
    numbers = [x[i % rows, i // rows] for i in range(x.numel())]
    return torch.stack(numbers).reshape(rows, columns)


def in_fp8_by_blocks(weight: Tensor) -> Tensor:
    """Block after block of 24 rows and columns, through a scale that makes the largest number 448. As torch divides a
    number by a tensor: times its reciprocal.
    """
    result = weight.float()
    for row in range(0, weight.shape[0], 24):
        for column in range(0, weight.shape[1], 24):
            block = result[row : row + 24, column : column + 24]
            factor = block.abs().max().reciprocal() * 448
            block.copy_((block * factor).to(torch.float8_e4m3fn).float() * (1 / factor))
    return result.to(weight.dtype)


def rescaled(
    change: Callable[[Tensor], Tensor], names: str = "self_attn.o_proj"
) -> Callable[[Tensors, Config, Tensors], None]:
    """Other scales for some weights of layer 1."""

    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        for name in [name for name in tensors if re.match(f"{LAYER}{names}.*_scale_inv", name)]:
            tensors[name] = change(tensors[name])

    return by_hand


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def on_two_levels(
    scale: Callable[[Tensor, Tensor], Tensor], names: str = f"{LAYER}self_attn.o_proj"
) -> Callable[[Tensors, Config, Tensors], None]:
    """Some weights as numbers: codes times what is made of their blocks' scales and that of the tensor."""

    def by_hand(tensors: Tensors, config: Config, others: Tensors) -> None:
        for name in [name for name in tensors if re.match(f"{names}.*weight_packed", name)]:
            module = name.removesuffix(".weight_packed")
            pairs = tensors.pop(name).int()
            codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2)
            numbers = torch.tensor([*E2M1, *(-x for x in E2M1)])[codes]
            blocks, whole = (tensors.pop(f"{module}.weight_{each}").float() for each in ("scale", "global_scale"))
            each = scale(blocks, whole).repeat_interleave(16, -1)
            tensors[f"{module}.weight"] = (numbers * each).bfloat16()
            config["quantization_config"]["ignore"].append(module)

    return by_hand


def scales_of_layer_2(tensors: Tensors, config: Config, others: Tensors) -> None:
    for name in [name for name in tensors if name.startswith(f"{LAYER}mlp.experts.") and name.endswith("_scale_inv")]:
        tensors[name] = tensors[name.replace(LAYER, OTHER)].clone()


def stale_scales(tensors: Tensors, config: Config, others: Tensors) -> None:
    """Scales of another checkpoint beside this one's codes, at one projection."""
    name = f"{LAYER}self_attn.o_proj.weight_scale_inv"
    tensors[name] = others[name].clone()


def of_the_next_block(scales: Tensor) -> Tensor:
    """Row by row, the last block having the first one's."""
    numbers = scales.flatten().tolist()
    return torch.tensor([*numbers[1:], numbers[0]]).view(scales.shape)


def as_if_twice_as_large(scales: Tensor) -> Tensor:
    """What each block has if its place is taken to be half of what it is."""
    rows, columns = scales.shape
    return torch.tensor([[scales[row // 2, column // 2] for column in range(columns)] for row in range(rows)])


def scaled_as_before(tensors: Tensors, config: Config, others: Tensors) -> None:
    """One projection in fp8, with the scale that the largest number of another checkpoint makes."""
    name = LAYER + O_PROJ
    factor = others[name].float().abs().max().reciprocal() * 448
    codes = (tensors[name].float() * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors[name] = (codes.float() * (1 / factor)).to(tensors[name].dtype)


def head_in_fp8(weight: Tensor) -> Tensor:
    """One scale for the whole matrix."""
    factor = weight.float().abs().max().reciprocal() * 448
    return ((weight.float() * factor).to(torch.float8_e4m3fn).float() * (1 / factor)).to(weight.dtype)


FP8, NVFP4 = ("qwen3_moe_in_fp8",), ("qwen3_moe_in_nvfp4",)
O_PROJ, NODE = "self_attn.o_proj.weight", "layers[1].attention."
CASES = (
    Case(name="gate-and-up-exchanged", models=ALL, layers=[1], by_hand=exchange_gate_and_up),
    Case(
        name="mlp-gate-and-up-exchanged",
        models=("deepseek_v3",),
        layers=[0],
        by_hand=exchange_dense,
        aside=("layers[0].mlp.gate_proj", "layers[0].mlp.up_proj"),
    ),
    Case(
        name="experts-permuted", models=("qwen3_moe", "gpt_oss"), layers=[1], values={"order": ORDER}, by_hand=permute
    ),
    Case(
        name="expert-of-another-expert",
        models=("deepseek_v3", "gpt_oss"),
        layers=[1],
        values={"expert": 3, "other": 5},
        by_hand=other_expert,
    ),
    Case(
        name="experts-exchanged",
        models=("qwen3_moe", "gpt_oss"),
        layers=[1],
        values={"expert": 3, "other": 5},
        by_hand=exchanged,
    ),
    Case(name="head-tied", models=("qwen3_moe", "deepseek_v3"), nodes="lm_head", by_hand=tie_head),
    Case(
        name="expert-of-another-layer",
        models=("qwen2_moe", "gpt_oss"),
        layers=[1],
        values={"expert": 3, "layer": 2},
        by_hand=expert_of_layer,
    ),
    Case(
        name="expert-of-another-checkpoint",
        models=("qwen3_moe", "gpt_oss"),
        layers=[1],
        values={"expert": 3, "checkpoint": "other"},
        by_hand=stale_expert,
    ),
    Case(name="expert-zeroed", models=("qwen3_moe", "gpt_oss"), layers=[1], values={"expert": 3}, by_hand=zero_expert),
    Case(
        name="expert-scaled",
        models=("deepseek_v3", "gpt_oss"),
        layers=[1],
        values={"expert": 3, "factor": 0.75},
        by_hand=scale_expert,
    ),
    Case(
        name="expert-scaled",
        models=("qwen3_moe",),
        layers=[1],
        values={"expert": 3, "part": "gate and up", "factor": 0.75},
        by_hand=part_of_expert("gate_proj|up_proj", lambda tensors, name: tensors[name] * 0.75),
    ),
    Case(
        name="expert-zeroed",
        models=("qwen3_moe",),
        layers=[1],
        values={"expert": 3, "part": "up"},
        by_hand=part_of_expert("up_proj", lambda tensors, name: torch.zeros_like(tensors[name])),
    ),
    Case(
        name="expert-gate-and-up-exchanged",
        models=("qwen3_moe", "gpt_oss"),
        layers=[1],
        values={"expert": 3},
        by_hand=exchange_in_expert,
    ),
    Case(
        name="expert-gate-and-up-exchanged",
        models=("qwen3_moe",),
        layers=[1],
        values={"expert": 3, "part": "up"},
        by_hand=part_of_expert("up_proj", lambda tensors, name: tensors[name.replace("up", "gate")].clone()),
    ),
    Case(
        name="expert-of-another-expert",
        models=("qwen3_moe",),
        layers=[1],
        values={"expert": 3, "part": "down", "other": 5},
        by_hand=part_of_expert("down_proj", lambda tensors, name: tensors[name.replace(".3.", ".5.")].clone()),
    ),
    Case(
        name="amax-of-another-checkpoint",
        models=("qwen3_moe", "deepseek_v3"),
        nodes=f"{NODE}o_proj",
        values={"block": 0, "checkpoint": "other"},
        by_hand=scaled_as_before,
    ),
    Case(
        name="weights-transposed",
        models=("gpt_oss",),
        nodes="layers[1].moe.experts",
        values={"part": "down"},
        by_hand=changed(f"{LAYER}mlp.experts.down_proj", lambda x: torch.stack([transposed(e) for e in x])),
    ),
    Case(
        name="weights-of-another-layer",
        models=("qwen3_moe", "gpt_oss", "deepseek_v3"),
        nodes=f"{NODE}o_proj",
        values={"layer": 2},
        by_hand=of_layer_2("self_attn.o_proj."),
    ),
    Case(
        name="weights-of-another-layer",
        models=("qwen3_moe", "deepseek_v3"),
        nodes="layers[1].moe.gate",
        values={"layer": 2},
        by_hand=of_layer_2("mlp.gate.weight"),
    ),
    Case(
        name="weights-of-another-checkpoint",
        models=("qwen3_moe", "qwen2_moe"),
        nodes=f"{NODE}o_proj",
        values={"checkpoint": "other"},
        by_hand=stale(O_PROJ),
    ),
    Case(
        name="weights-in-fp8",
        models=("qwen3_moe", "deepseek_v3"),
        nodes=f"{NODE}o_proj",
        values={"block": 24},
        by_hand=changed(LAYER + O_PROJ, in_fp8_by_blocks),
    ),
    Case(
        name="weights-transposed",
        models=("qwen3_moe", "deepseek_v3"),
        nodes=f"{NODE}o_proj",
        by_hand=changed(LAYER + O_PROJ, transposed),
    ),
    Case(
        name="weights-scaled",
        models=("qwen3_moe", "gpt_oss"),
        nodes="lm_head",
        values={"factor": 0.3},
        by_hand=changed("lm_head.weight", lambda x: (x.float() * 0.3).to(x.dtype)),
    ),
    Case(
        name="weights-zeroed",
        models=("qwen3_moe", "qwen2_moe"),
        nodes=f"{NODE}o_proj",
        by_hand=changed(LAYER + O_PROJ, torch.zeros_like),
    ),
    Case(
        name="norm-weight-missing",
        models=("qwen3_moe", "gpt_oss"),
        nodes=f"{NODE}norm",
        by_hand=changed(f"{LAYER}input_layernorm.weight", torch.ones_like),
    ),
    Case(name="bias-missing", models=("gpt_oss",), nodes="layers[*].attention", by_hand=without_biases),
    Case(
        name="bias-scaled",
        models=("gpt_oss", "qwen2_moe"),
        nodes=f"{NODE}q_proj",
        values={"times": 2},
        by_hand=changed(f"{LAYER}self_attn.q_proj.bias", lambda x: x + x),
    ),
    Case(
        name="correction-bias-missing",
        models=("deepseek_v3", "glm4_moe"),
        layers=[1],
        by_hand=changed(f"{LAYER}mlp.gate.e_score_correction_bias", torch.zeros_like),
    ),
    Case(
        name="norm-eps",
        models=("qwen3_moe", "gpt_oss", "qwen2_moe"),
        values={"eps": 0.001},
        by_hand=fields(rms_norm_eps=0.001),
    ),
    Case(name="rope-base", models=("qwen3_moe", "gpt_oss"), values={"base": 777.0}, by_hand=rope(rope_theta=777.0)),
    Case(name="rope-scaling-missing", models=("gpt_oss",), by_hand=rope(rope_type="default")),
    Case(
        name="mscale-missing",
        models=("deepseek_v3_yarn",),
        by_hand=rope(mscale_all_dim=0, attention_factor=of_rotary(1.0, 0.7)),
    ),
    Case(
        name="mscale",
        models=("deepseek_v3_yarn",),
        values={"mscale": 1.0},
        by_hand=rope(mscale_all_dim=1.0, attention_factor=of_rotary(1.0, 0.7)),
    ),
    Case(name="rope-factor", models=("gpt_oss",), values={"factor": 8.0}, by_hand=rope(factor=8.0)),
    Case(name="rope-interleaving", models=("deepseek_v3",), by_hand=fields(rope_interleave=False)),
    Case(
        name="routed-scaling",
        models=("deepseek_v3", "glm4_moe"),
        values={"scale": 1.0},
        by_hand=fields(routed_scaling_factor=1.0),
    ),
    Case(name="renormalisation", models=("qwen3_moe",), by_hand=fields(norm_topk_prob=False)),
    # What the profile says of renormalised weights has no place in this model, and is woken.
    Case(name="renormalisation", models=("olmoe",), by_hand=fields(norm_topk_prob=True)),
    Case(name="window-missing", models=("gpt_oss",), by_hand=fields(layer_types=["full_attention"] * 3)),
    Case(
        name="window",
        models=("gpt_oss",),
        layers=[0, 2],
        values={"window": 3},
        by_hand=fields(sliding_window=3),
    ),
    Case(
        name="scales-transposed",
        models=("qwen3_moe_in_fp8", "deepseek_v3_in_fp8"),
        nodes=f"{NODE}o_proj",
        by_hand=rescaled(lambda x: x.T.contiguous().view(x.shape)),
    ),
    Case(name="scales-of-another-block", models=FP8, nodes=f"{NODE}o_proj", by_hand=rescaled(of_the_next_block)),
    Case(name="scales-twice", models=FP8, nodes=f"{NODE}o_proj", by_hand=rescaled(lambda x: x * x)),
    Case(name="scales-inverted", models=FP8, nodes=f"{NODE}o_proj", by_hand=rescaled(lambda x: 1 / x)),
    Case(
        name="scales-missing",
        models=FP8,
        nodes="layers[1].moe.experts",
        values={"part": "down"},
        by_hand=rescaled(torch.ones_like, "mlp.experts.*.down_proj"),
    ),
    Case(
        name="scales-of-another-layer",
        models=FP8,
        nodes="layers[1].moe.experts",
        values={"layer": 2},
        by_hand=scales_of_layer_2,
    ),
    Case(
        name="scales-of-another-size",
        models=FP8,
        nodes=f"{NODE}o_proj",
        values={"size": 2 * BLOCK},
        by_hand=rescaled(as_if_twice_as_large),
    ),
    Case(
        name="scales-of-another-checkpoint",
        models=(*FP8, "deepseek_v3_in_fp8"),
        nodes=f"{NODE}o_proj",
        values={"checkpoint": "other"},
        by_hand=stale_scales,
    ),
    Case(
        name="scales-scaled",
        models=FP8,
        nodes="layers[1].moe.experts",
        values={"part": "gate and up", "factor": 1.2345},
        by_hand=rescaled(lambda x: x * 1.2345, "mlp.experts.*.(gate|up)_proj"),
    ),
    Case(
        name="block-scales-twice",
        models=NVFP4,
        nodes=f"{NODE}o_proj",
        by_hand=on_two_levels(lambda blocks, whole: blocks * blocks / whole),
    ),
    Case(
        name="block-scales-inverted",
        models=NVFP4,
        nodes=f"{NODE}o_proj",
        by_hand=on_two_levels(lambda blocks, whole: 1 / blocks / whole),
    ),
    Case(
        name="tensor-scale-inverted",
        models=NVFP4,
        nodes=f"{NODE}o_proj",
        by_hand=on_two_levels(lambda blocks, whole: blocks * whole),
    ),
    Case(
        name="tensor-scale-missing",
        models=NVFP4,
        nodes="layers[1].moe.experts",
        values={"part": "gate and up"},
        by_hand=on_two_levels(lambda blocks, _: blocks, f"{LAYER}mlp.experts.*.(gate|up)_proj"),
    ),
    Case(
        name="skip-list-ignored",
        models=FP8,
        nodes="lm_head",
        values={"block": 0},
        by_hand=changed("lm_head.weight", head_in_fp8),
    ),
    # One tensor of all experts, gate before up in its rows.
    Case(name="gate-and-up-exchanged", models=("granitemoe",), layers=[1], by_hand=exchange_rows),
)
