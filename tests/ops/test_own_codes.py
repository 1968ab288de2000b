"""GEMMs of a checkpoint's own codes and static scales: no number is rounded a second time."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.engine.forward import forward
from moeparity.errors import SpecError
from moeparity.inputs.model import Model, open_model
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.codes import numbers
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.packed import factors, numbers_of_zeros
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
from moeparity.numerics.quantised import codes_of
from tests.checkpoint_factory import FILE, make_random
from tests.hf.compare import tokens
from tests.numerics.scalar import BF16, FP32, fma, multiply, nearest
from tests.ops.test_kv_cache import code_of
from tests.small_models import SMALL

Tensor = torch.Tensor
FP8 = torch.float8_e4m3fn
FIELDS = {
    **SMALL["qwen3_moe"], "hidden_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 4,
}  # fmt: skip
BLOCK = 32
Q, OUT = "layers[0].attention.q_proj", "layers[0].attention.o_proj"
EXPERTS = "layers[0].moe.experts"
NAME = "model.layers.0.self_attn.q_proj"
IDS = tokens(64, (2, 5))
GRIDS: dict[str, str | float] = {
    "weights": "fp8_e4m3", "activations": "fp8_e4m3", "weight_block": BLOCK, "activation_group": BLOCK,
    "order": "sequential", "output": "fp32",
}  # fmt: skip
STATED = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
TENSORS: dict[str, str | float] = {
    "weights": "fp8_e4m3", "activations": "fp8_e4m3", "weight_scales": "tensor", "activation_scales": "static",
    "order": "sequential", "output": "fp32", "scaling": "weight_first",
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random(FIELDS, tmp_path_factory.mktemp("bf16") / "model")


@pytest.fixture(scope="module")
def blocks(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("fp8") / "model"
    quantise(source, FORMATS["fp8-blocks"], folder, BLOCK)
    return rewritten(folder, load_file(folder / FILE), STATED)


@pytest.fixture(scope="module")
def static(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """In fp8 with one scale for a tensor, and static scales of activations, as Model Optimizer writes them."""
    folder = tmp_path_factory.mktemp("tensor") / "model"
    quantise(source, FORMATS["fp8-blocks"], folder, 0)
    stated = {"quant_algo": "FP8", "quant_method": "modelopt", "ignore": ["lm_head", "*.gate"]}
    scale = ".weight_scale_inv"
    changed = {name.replace(scale, ".weight_scale"): x for name, x in load_file(folder / FILE).items()}
    changed = {name: x.reshape(()) if name.endswith(".weight_scale") else x for name, x in changed.items()}
    places = [name.removesuffix(".weight_scale") for name in changed if name.endswith(".weight_scale")]
    return rewritten(folder, changed | {f"{place}.input_scale": input_scale(place) for place in places}, stated)


def input_scale(place: str) -> Tensor:
    """Another one for each weight, so that a maximum is seen."""
    return torch.tensor(0.004 + 0.0001 * (sum(map(ord, place)) % 17))


def rewritten(folder: Path, tensors: dict[str, Tensor], stated: dict[str, Any]) -> Model:
    """With the codes of each block at most 240, so that its largest is not the one that a scale would be made for."""
    fewer = {name: x.float().clamp(-240, 240).to(FP8) if x.dtype == FP8 else x for name, x in tensors.items()}
    save_file({name: x.contiguous() for name, x in fewer.items()}, folder / FILE, {"format": "pt"})
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": stated}), "utf-8")
    return open_model(folder, device="cpu")


def run(model: Model, node: str, sets: dict[str, Any], **placed: Any) -> tuple[Tensor, Tensor]:
    """What a node reads and gives, as rows."""
    maker = next(n for n in model.graph.nodes if n.name == node).inputs[0]
    out = forward(
        model, IDS, save=[maker, node], settings={f"{node}:{name}": value for name, value in sets.items()}, **placed
    )
    x, y = (out[key.replace("[", ".").replace("]", "")] for key in (maker, node))
    return x.flatten(0, 1), y.flatten(0, 1) if placed else y.flatten(0, 1).flatten(1)


def added(left: Tensor, right: Tensor) -> float:
    """Products in fp32, added one by one."""
    total = 0.0
    for a, b in zip(left.float().tolist(), right.float().tolist(), strict=True):
        total = fma(a, b, total, FP32)
    return total


def group(x: list[float]) -> tuple[Tensor, float]:
    """Codes and scale of a group: by division, then times 1 / scale."""
    amax = max(map(abs, x))
    scale = nearest(Fraction(max(amax, nearest(Fraction(1e-10), FP32))) / 448, FP32)
    inverse = nearest(1 / Fraction(scale), FP32)
    bits = [code_of(multiply(value, inverse, FP32), "fp8_e4m3", saturates=True) for value in x]
    return torch.tensor(bits, dtype=torch.uint8).view(FP8), scale


def element_by_blocks(x: Tensor, codes: Tensor, scales: Tensor, row: int) -> float:
    """One output of codes and scales as they lie in the file."""
    total = 0.0
    for start in range(0, len(x), BLOCK):
        x_codes, scale = group(x[start : start + BLOCK].float().tolist())
        sums = added(x_codes, codes[row, start : start + BLOCK])
        total = fma(multiply(scale, float(scales[row // BLOCK, start // BLOCK]), FP32), sums, total, FP32)
    return total


@pytest.mark.parametrize(
    ("dtype", "scaled"), [(torch.bfloat16, FP32), (torch.bfloat16, BF16), (FP32, FP32), (FP32, BF16)]
)
def test_no_code_is_lost_on_its_way_through_a_product(dtype: torch.dtype, scaled: torch.dtype) -> None:
    """All codes, under scales of many sizes, bf16 and fp32; NaN and -0 too."""
    g = torch.Generator().manual_seed(0)
    scales = ((1 + torch.rand(2048, 1, generator=g)) * 2.0 ** torch.randint(-60, 60, (2048, 1), generator=g)).to(scaled)
    every = torch.arange(256, dtype=torch.uint8).view(FP8).expand(2048, -1)
    product = (every.to(scaled) * scales).to(dtype)
    codes = codes_of(product, scales.float(), 256, FP8).codes
    numbers = ~every.float().isnan()
    assert torch.equal(codes.view(torch.uint8)[numbers], every.contiguous().view(torch.uint8)[numbers])
    assert codes.float().isnan().equal(~numbers)
    whole = torch.arange(-128, 128, dtype=torch.int8).expand(2048, -1)
    assert codes_of((whole.to(scaled) * scales).to(dtype), scales.float(), 256, torch.int8).codes.equal(whole)


def test_a_scale_of_zero_gives_zeros() -> None:
    assert codes_of(torch.zeros(1, 4), torch.zeros(1, 1), 4, FP8).codes.float().tolist() == [[0.0] * 4]


def test_blocks_are_those_of_the_file(blocks: Model) -> None:
    x, out = run(blocks, Q, GRIDS)
    stored = load_file(blocks.folder / FILE)
    codes, scales = stored[f"{NAME}.weight"], stored[f"{NAME}.weight_scale_inv"]
    for token, row in ((0, 0), (3, 31), (9, 127)):
        assert float(out[token, row]) == element_by_blocks(x[token], codes, scales, row)
    rounded_anew = run(blocks, Q, {**GRIDS, "weight_codes": "made"})[1]
    assert not same_bits(out, rounded_anew)


def test_a_weight_rounded_once_more_begins_with_the_files_codes(blocks: Model) -> None:
    """As DeepGEMM's on Hopper: powers of two for scales, made of the file's numbers in fp32."""
    x, out = run(blocks, Q, {**GRIDS, "weight_scale": "requantised", "weight_scale_by": "divided"})
    stored = load_file(blocks.folder / FILE)
    codes, scales = stored[f"{NAME}.weight"].float(), stored[f"{NAME}.weight_scale_inv"]
    numbers = codes * scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    squares = numbers.view(4, BLOCK, 4, BLOCK)
    powers = torch.exp2(torch.ceil(torch.log2(squares.abs().amax((1, 3)) / 448)))
    again = (squares / powers[:, None, :, None]).to(FP8).view(128, 128)
    for token, row in ((1, 5), (8, 96)):
        assert float(out[token, row]) == element_by_blocks(x[token], again, powers, row)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_their_parts_of_codes_and_scales(blocks: Model, ranks: int) -> None:
    whole = run(blocks, Q, GRIDS)[1]
    assert same_bits(whole, run(blocks, Q, GRIDS, placement={"tensor": ranks})[1].flatten(1))
    x, total = run(blocks, OUT, {**GRIDS, "partial": "fp32"}, placement={"tensor": ranks})
    stored, width = load_file(blocks.folder / FILE), 128 // ranks
    name = NAME.replace("q_proj", "o_proj")
    codes, scales = stored[f"{name}.weight"], stored[f"{name}.weight_scale_inv"]
    parts = [slice(rank * width, (rank + 1) * width) for rank in range(ranks)]
    exact = sum(
        Fraction(element_by_blocks(x[4, part], codes[:, part], scales[:, part.start // BLOCK :], 70)) for part in parts
    )
    assert float(total[4, 70]) == nearest(exact, FP32)


def test_one_scale_for_a_tensor_and_a_static_one_are_the_files(static: Model) -> None:
    x, out = run(static, Q, TENSORS)
    stored = load_file(static.folder / FILE)
    codes, scale = stored[f"{NAME}.weight"], float(stored[f"{NAME}.weight_scale"])
    static_scale = float(stored[f"{NAME}.input_scale"])
    inverse = nearest(1 / Fraction(static_scale), FP32)
    for token, row in ((0, 0), (9, 127)):
        bits = [
            code_of(multiply(value, inverse, FP32), "fp8_e4m3", saturates=True) for value in x[token].float().tolist()
        ]
        sums = added(torch.tensor(bits, dtype=torch.uint8).view(FP8), codes[row])
        assert float(out[token, row]) == multiply(multiply(sums, scale, FP32), static_scale, FP32)


def test_torch_multiplies_the_same_codes(static: Model) -> None:
    """`torch._scaled_mm` on this CPU multiplies both operands out in fp32 first, with scales as they are in a file."""
    sets = {**TENSORS, "scaling": "operands", "order": "native", "output": "bf16", "activation_quotient": "divided"}
    x, out = run(static, Q, sets)
    stored = load_file(static.folder / FILE)
    static_scale, scale = stored[f"{NAME}.input_scale"], stored[f"{NAME}.weight_scale"]
    codes = (x.float() / static_scale).clamp(-448, 448).to(FP8)
    theirs = torch._scaled_mm(codes, stored[f"{NAME}.weight"].t(), static_scale, scale, out_dtype=torch.bfloat16)
    assert same_bits(out, theirs)
    assert not same_bits(out, run(static, Q, {**sets, "weight_codes": "made"})[1])


@pytest.mark.parametrize("gate_up", ["fused", "split"])
def test_experts_multiply_the_files_codes(static: Model, gate_up: str) -> None:
    """The largest static scale of a layer's experts is that of all, gate and up together."""
    stored = load_file(static.folder / FILE)
    place = "model.layers.0.mlp.experts"

    def matrices(name: str, kind: str) -> list[Tensor]:
        return [stored[f"{place}.{expert}.{name}_proj.{kind}"] for expert in range(4)]

    sets = {**TENSORS, "implementation": "loop", "gate_up": gate_up}
    ours = forward(
        static, IDS, save=[EXPERTS], settings={f"{EXPERTS}:{n}": v for n, v in sets.items() if n != "output"}
    )
    out = forward(static, IDS, save=["layers[0].moe.norm"])
    x = out["layers.0.moe.norm"].flatten(0, 1)
    first = torch.stack([*matrices("gate", "input_scale"), *matrices("up", "input_scale")]).max()
    second = torch.stack(matrices("down", "input_scale")).max()
    ids = out["layers.0.router.ids"]

    def product(rows: Tensor, name: str, expert: int, static_scale: Tensor) -> Tensor:
        codes = (rows.float() * (1 / static_scale)).clamp(-448, 448).to(FP8)
        weight = matrices(name, "weight")[expert]
        sums = torch.tensor([[added(a, b) for b in weight] for a in codes])
        return ((sums * matrices(name, "weight_scale")[expert]) * static_scale).bfloat16()

    for token, slot in ((0, 0), (6, 1)):
        expert, row = int(ids[token, slot]), x[token : token + 1]
        gate, up = (product(row, name, expert, first) for name in ("gate", "up"))
        hidden = torch.nn.functional.silu(gate) * up
        expected = product(hidden, "down", expert, second)
        assert same_bits(ours["layers.0.moe.experts"].flatten(0, 1)[token, slot], expected[0])


@pytest.mark.parametrize(
    ("sets", "dtype", "says"),
    [
        ({**GRIDS, "weight_block": 64}, "bf16", "for each 32 x 32 numbers, and not 64 x 64"),
        ({**GRIDS, "weight_scales": "channel"}, "bf16", "for each 32 x 32 numbers, and not 1 x 128"),
        (GRIDS, "fp16", "can be lost in fp16"),
        ({**GRIDS, "activation_scales": "static"}, "bf16", f"no input_scale beside {NAME}.weight"),
    ],
)
def test_what_is_not_the_files_is_refused_before_the_run(
    blocks: Model, sets: dict[str, Any], dtype: str, says: str
) -> None:
    sets = {n: v for n, v in sets.items() if n != "weight_block" or sets.get("weight_scales") != "channel"}
    sets = {n: v for n, v in sets.items() if n != "activation_group" or "activation_scales" not in sets}
    with pytest.raises(SpecError) as refused:
        forward(blocks, IDS, dtype=dtype, settings={f"{Q}:{name}": value for name, value in sets.items()})
    assert Q in str(refused.value)
    assert says in str(refused.value)


def test_scales_for_more_than_a_rank_has_are_refused(blocks: Model) -> None:
    with pytest.raises(SpecError, match="each rank has 16"):
        run(blocks, EXPERTS, {**GRIDS, "implementation": "loop", "activation_group": 16}, placement={"tensor": 4})


INT4: dict[str, str | float] = {
    "weights": "int4", "weight_scales": "group", "weight_block": BLOCK, "order": "sequential", "output": "fp32",
}  # fmt: skip
FOUR_BITS = {"awq": "int4", "gptq-int4": "int4", "int4-packed": "int4", "mxfp4-packed": "fp4_e2m1"}


@pytest.mark.parametrize("scale_dtype", ["unrounded", "model"])
@pytest.mark.parametrize("name", FOUR_BITS)
def test_codes_of_4_bits_meet_their_scales_in_fp32(source: Path, tmp_path: Path, name: str, scale_dtype: str) -> None:
    """Codes less zero points times scales, rounded once; the format's own program may round twice."""
    quantise(source, FORMATS[name], tmp_path / "q", BLOCK)
    model = open_model(tmp_path / "q", device="cpu")
    x, out = run(model, Q, {**INT4, "weights": FOUR_BITS[name], "weight_scale_dtype": scale_dtype})
    checkpoint = Checkpoint(tmp_path / "q")
    entry, stored = checkpoint.entries[f"{NAME}.weight"], checkpoint.parts(f"{NAME}.weight")
    assert entry.packed is not None
    form, codes = entry.packed.form, numbers(stored["values"], entry.packed.form).float()
    scales = factors(stored["scales"], None, divides=False).float()
    scales = scales.bfloat16().float() if scale_dtype == "model" else scales
    axis = 0 if form.input_major else 1
    if "zeros" in stored:
        codes = codes - numbers_of_zeros(stored["zeros"], form)[: len(scales), : scales.shape[1]].repeat_interleave(
            BLOCK, axis
        )
    weight = (codes * scales.repeat_interleave(BLOCK, axis)).bfloat16()
    weight = weight.t() if form.input_major else weight
    for token, row in ((0, 0), (9, 127), (4, 77)):
        assert float(out[token, row]) == added(x[token], weight[row])


def test_a_stack_of_mxfp4_is_its_codes_times_powers_of_two(tmp_path: Path) -> None:
    """Which bf16 holds: experts multiply the same numbers, of codes that are found again in a transposed stack."""
    source = make_random({**SMALL["gpt_oss"], "intermediate_size": 64, "num_hidden_layers": 1}, tmp_path / "bf16")
    quantise(source, FORMATS["mxfp4"], tmp_path / "q", 32)
    model = open_model(tmp_path / "q", device="cpu")
    plain = {"implementation": "loop", "unbiased": "fp32"}
    codes = {"weights": "fp4_e2m1", "weight_scales": "group", "weight_block": 32}
    assert same_bits(run(model, EXPERTS, plain)[1], run(model, EXPERTS, {**plain, **codes})[1])
    rounded_anew = run(model, EXPERTS, {**plain, **codes, "weights": "fp8_e4m3", "weight_codes": "made"})[1]
    assert not same_bits(run(model, EXPERTS, plain)[1], rounded_anew)


def test_groups_out_of_order_are_refused(source: Path, tmp_path: Path) -> None:
    quantise(source, FORMATS["gptq-int4"], tmp_path / "q", BLOCK)
    tensors = load_file(tmp_path / "q" / FILE)
    tensors[f"{NAME}.g_idx"] = tensors[f"{NAME}.g_idx"].flip(0).contiguous()
    save_file(tensors, tmp_path / "q" / FILE, {"format": "pt"})
    with pytest.raises(SpecError, match=rf"weight_codes: inputs that share a scale of {NAME}\.weight do not lie"):
        run(open_model(tmp_path / "q", device="cpu"), Q, INT4)


EXPAND, ATTEND = "layers[0].attention.expand", "layers[0].attention.attend"
LATENT: dict[str, Any] = {
    "weights": "fp8_e4m3", "activations": "fp8_e4m3", "weight_block": BLOCK, "activation_group": BLOCK,
}  # fmt: skip


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Latent attention, in fp8 by blocks."""
    fields = {**SMALL["deepseek_v3"], "kv_lora_rank": 64, "num_hidden_layers": 1}
    source = make_random(fields, tmp_path_factory.mktemp("latent") / "model")
    folder = tmp_path_factory.mktemp("latent_fp8") / "model"
    quantise(source, FORMATS["fp8-blocks"], folder, BLOCK)
    return rewritten(folder, load_file(folder / FILE), STATED)


def attended(model: Model, projection: str, **sets: dict[str, Any]) -> dict[str, Tensor]:
    """What a step expands and attends to; sets: by node."""
    settings = {f"layers[0].attention.{node}:{name}": value for node, of in sets.items() for name, value in of.items()}
    settings[f"{ATTEND}:projection"] = projection
    return forward(model, IDS, settings=settings, save=["layers[0].attention.*"])


def test_a_latent_is_expanded_by_the_files_codes(latent: Model) -> None:
    """By the step's own GEMM, and by one of all latents that it sees, which give the same bits of a whole prompt."""
    fp32 = {"kv_b": "fp32", "kv_b_order": "sequential"}
    out = attended(latent, "expanded", expand={**LATENT, **fp32})
    stored, name = load_file(latent.folder / FILE), "model.layers.0.self_attn.kv_b_proj.weight"
    x = out["layers.0.attention.kv_a_norm"].flatten(0, -2)
    heads = out["layers.0.attention.expand"].flatten(0, 1).flatten(1)
    for token, row in ((0, 0), (9, 100)):
        expected = element_by_blocks(x[token], stored[name], stored[f"{name}_scale_inv"], row)
        assert float(heads[token, row]) == expected
    whole = attended(latent, "expanded", expand=LATENT)["layers.0.attention.attend"]
    assert same_bits(whole, attended(latent, "context", attend=LATENT)["layers.0.attention.attend"])
    assert not same_bits(whole, attended(latent, "context")["layers.0.attention.attend"])


def test_absorbed_halves_are_multiplied_out(latent: Model) -> None:
    """The file's own codes are the loaded weight; rounded anew with scales of other blocks they are another."""
    of_file = {"weights": "fp8_e4m3", "weight_block": BLOCK}
    absorbed = [attended(latent, "absorbed", attend=sets)["layers.0.attention.attend"] for sets in ({}, of_file)]
    assert same_bits(*absorbed)
    rounded_anew = {"weights": "fp8_e4m3", "weight_block": 8, "weight_codes": "made"}
    assert not same_bits(absorbed[0], attended(latent, "absorbed", attend=rounded_anew)["layers.0.attention.attend"])
    ranks = forward(latent, IDS, placement={"tensor": 2}, save=[ATTEND], settings={f"{ATTEND}:projection": "absorbed"})
    in_codes: dict[str, Any] = {f"{ATTEND}:{name}": value for name, value in of_file.items()}
    in_codes[f"{ATTEND}:projection"] = "absorbed"
    of_ranks = forward(latent, IDS, placement={"tensor": 2}, save=[ATTEND], settings=in_codes)
    assert same_bits(ranks["layers.0.attention.attend"], of_ranks["layers.0.attention.attend"])
