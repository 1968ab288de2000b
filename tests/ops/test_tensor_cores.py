"""GEMMs of ops on the tensor cores of a GPU: held to what an H200 recorded, and to Python's fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.gpu.hardware import SHAPES, integers
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import UNROUNDED
from moeparity.numerics.gemm import gemm
from moeparity.numerics.gemm_forms import spans
from moeparity.numerics.tensor_core.gemm_orders import GRAIN
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.ops.attribute import RefusedError
from moeparity.ops.registry import OPS
from tests.numerics.tensor_core import scalar
from tests.ops.test_placement import run
from tests.recorded.files import count_of_others, read
from tests.verified import Recorded, record

BF16, FP16, FP32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
NAMES = {BF16: "bf16", FP16: "fp16"}
GPUS = [("a100", BF16), ("a100", FP16), ("h100", BF16), ("h100", FP16), ("b200", BF16), ("l40s", BF16), ("t4", FP16),
        ("v100", FP16)]  # fmt: skip


# As an H200 recorded it


H200 = Recorded("NVIDIA H200", "2.11.0", "2026-11-27")
CALLS = {"cublas": "torch.nn.functional.linear (cuBLAS 13.1)", "fp32": "torch.mm with an fp32 result (cuBLAS 13.1)"}
MOST_DRAWN = 1 << 22
"""Numbers of a weight: drawing more takes long. tests/numerics/tensor_core/test_h200.py holds every weight."""


UNCUT = {"weights": UNROUNDED, "activations": UNROUNDED, "tensor": 1, "blocks": 0}
NO_GRIDS: dict[str, dict[str, Any]] = {
    "linear": UNCUT, "gate": {}, "lm_head": {n: UNCUT[n] for n in ("weights", "activations")},
}  # fmt: skip
"""What a row-wise `linear` and a head would show in these records if they had it otherwise."""


def recorded() -> Iterator[tuple[int, int, int, int]]:
    """Rows, K, N and the number of splits of the plan."""
    _, facts = read("gemms")
    for k, n in SHAPES:
        for rows in (1, 16, 200):
            plan = facts[f"{rows} {k} {n}/plan_32MiB"]
            if plan["algo_id"] == 66 and min(n, 4096) * k <= MOST_DRAWN:
                yield rows, k, n, plan["split_k"]


def test_gemms_of_ops_have_the_bits_of_an_h200() -> None:
    """Split as cuBLASLt said; in fp32 and in bf16. An H100 has the same instruction."""
    tensors, _ = read("gemms")
    splits_seen = set()
    assert instruction("h100", "bf16") == instruction("h200", "bf16")
    for rows, k, n, splits in recorded():
        weight = integers(min(n, 4096), k, 1000 + SHAPES.index((k, n)))[:64]
        x = integers(rows, k, 5000 + rows)[:16].unsqueeze(0)
        for op, p in (("linear", {"heads": None, "parallel": "column"}), ("gate", {}), ("lm_head", {})):
            for output, name in ((FP32, "fp32"), (BF16, "cublas")):
                ours = run(op, x, w={"weight": weight}, p=p, order="tensor_core(h200)", splits=splits, output=output)
                assert count_of_others(ours[0], tensors[f"{rows} {k} {n}/{name}"]) == 0, (op, rows, k, n)
                for gpu in ("h100", "h200"):
                    at = {"inputs": BF16, "output": output, "order": f"tensor_core({gpu})", "splits": splits}
                    record(op, {**at, **NO_GRIDS[op]}, CALLS[name], operands=BF16, how="recorded", recorded=H200)
        splits_seen.add(splits)
    assert min(splits_seen) == 1 < max(splits_seen)


@pytest.mark.parametrize("otherwise", [{"weights": FP8}, {"activations": FP8}, {"blocks": 2}], ids=str)
def test_the_records_tell_grids_and_blocks(otherwise: dict[str, Any]) -> None:
    """Operands on a grid of 8 bits, or K in two fixed blocks whose parts are added, are not what the H200 had."""
    tensors, _ = read("gemms")
    k, n = 2048, 768
    weight, x = integers(n, k, 1000 + SHAPES.index((k, n)))[:64], integers(16, k, 5000 + 16).unsqueeze(0)
    at: dict[str, Any] = {"order": "tensor_core(h200)", "output": FP32, "partial": FP32}
    for op in ("linear", "lm_head") if "blocks" not in otherwise else ("linear",):
        p = {"heads": None, "parallel": "row"}
        changed = run(op, x, w={"weight": weight}, p=p, **at, **otherwise)
        changed = changed.sum(1) if changed.dim() == 4 else changed
        assert count_of_others(changed[0], tensors[f"16 {k} {n}/fp32"]) > 0.9 * changed.numel()


def test_latents_are_expanded_as_an_h200_has_it() -> None:
    """A kv_b of DeepSeek's width, which no plan splits; not what operands on a grid of 8 bits give."""
    tensors, facts = read("gemms")
    k, n = 512, 32768
    kv_b = integers(4096, k, 1000 + SHAPES.index((k, n)))[:64]
    at: dict[str, Any] = {"kv_b": BF16, "kv_b_order": "tensor_core(h200)"}
    numbers, changed = 0, dict.fromkeys(("weights", "activations"), 0)
    for rows in (1, 16, 200):
        assert facts[f"{rows} {k} {n}/plan_32MiB"]["split_k"] == 1
        latent = integers(rows, k, 5000 + rows)[:16]
        truth = tensors[f"{rows} {k} {n}/cublas"]
        ours = run("mla_expand", latent[None, None], None, w={"kv_b": kv_b}, p={"heads": 2}, **at)
        assert count_of_others(ours.flatten(2)[0], truth) == 0
        numbers += truth.numel()
        for operand in changed:
            on_grid = run(
                "mla_expand", latent[None, None], None, w={"kv_b": kv_b}, p={"heads": 2}, **at, **{operand: FP8}
            )
            changed[operand] += count_of_others(on_grid.flatten(2)[0], truth)
        for gpu in ("h100", "h200"):
            of_gpu = {**at, "kv_b_order": f"tensor_core({gpu})", "weights": UNROUNDED, "activations": UNROUNDED}
            record("mla_expand", of_gpu, CALLS["cublas"], operands=BF16, how="recorded", recorded=H200)
    assert min(changed.values()) > 0.9 * numbers


def test_gate_and_up_of_an_expert_have_the_bits_of_an_h200() -> None:
    """The identity in place of the down projection, and a gate so large that silu hands it on: up's GEMM is left."""
    tensors, _ = read("gemms")
    k, n = 2048, 768
    weight = integers(n, k, 1000 + SHAPES.index((k, n)))[:64]
    x = integers(16, k, 5000 + 16)
    gate = torch.zeros(64, k)
    gate[:, 0] = 1.0
    x = x.unsqueeze(0)
    loud = {"gate_up": torch.stack([torch.cat([gate.bfloat16(), weight])]), "down": torch.eye(k, 64).bfloat16()[None]}
    ids = torch.zeros(1, 16, 1, dtype=torch.int64)
    at = {"order": "tensor_core(h200)", "projections": BF16, "activation": FP32, "product": FP32, "output": FP32}
    ours = run("experts", x, ids, None, w=loud, p={"glu": "swiglu"}, **at)[0, :, 0, :64]
    up = tensors["16 2048 768/cublas"].float()
    # In the layout of the op: torch's vectors have another exp than its scalars.
    scale = torch.nn.functional.silu(x[0, :, :1].float().repeat(1, 64))
    assert same_bits(ours, (scale * up).float())


def test_promotion_is_that_of_an_h200_in_fp8() -> None:
    """`torch._scaled_mm` of e4m3 without fast accumulation begins a chain for each 128 of K; with it, it does not."""
    tensors, _ = read("gemms_of_fp8")
    orders = {"fast": "tensor_core(h200)", "promoted": "tensor_core(h200, promote=128)"}
    for k, n in ((2048, 768), (4096, 2048)):
        weight = integers(n, k, 7000 + k).to(torch.float8_e4m3fn)[:64]
        x = integers(200, k, 8000 + 200).to(torch.float8_e4m3fn)[:16]
        for name, order in orders.items():
            ours = gemm(x, weight, None, inputs=torch.float8_e4m3fn, output=FP32, order=order)
            for ran in orders:
                count = count_of_others(ours, tensors[f"200 {k} {n} {ran}"])
                assert count == 0 if ran == name else count > 0.9 * ours.numel(), (k, n, name, ran)


# As Python's fractions have it


def cancelling(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Pairs that nearly cancel, so that a sum shows where its terms are cut off."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    x[..., 1::2] = x[..., ::2]
    return (x * 2.0 ** torch.randint(-3, 4, shape, generator=generator)).to(dtype)


def chain(gpu: str, x: Tensor, weight: Tensor, start: int, stop: int) -> float:
    """One output: a row of x times a row of weight, from K `start` to `stop`, one dot-add after the other."""
    name = NAMES[x.dtype]
    of_gpu, total = instruction(gpu, name).dot_add, 0.0
    for k in range(start, stop, of_gpu.products):
        at = slice(k, min(k + of_gpu.products, stop))
        total = scalar.dot_add(
            x[at].tolist(), weight[at].tolist(), total, (name, name), of_gpu.fraction, "fp32", of_gpu.floor
        )
    return total


def by_hand(gpu: str, x: Tensor, weight: Tensor, cuts: list[slice] | None = None) -> Tensor:
    """x [M, K], weight [N, K] -> fp32 [M, N]; parts of K are added in fp32, ascending."""
    out = torch.zeros(len(x), len(weight))
    for i, j in torch.cartesian_prod(torch.arange(len(x)), torch.arange(len(weight))).tolist():
        parts = [chain(gpu, x[i], weight[j], cut.start, cut.stop) for cut in cuts or [slice(0, x.shape[1])]]
        total = torch.tensor(parts[0])
        for part in parts[1:]:
            total = total + torch.tensor(part)
        out[i, j] = total
    return out


@pytest.mark.parametrize(("gpu", "dtype"), GPUS)
def test_an_op_adds_as_fractions_do(gpu: str, dtype: torch.dtype) -> None:
    x, weight = cancelling(3, 96, dtype=dtype, seed=1), cancelling(5, 96, dtype=dtype, seed=2)
    truth = by_hand(gpu, x, weight)
    ours = run("gate", x[None], w={"weight": weight}, order=f"tensor_core({gpu})", inputs=dtype, output=FP32)[0]
    assert same_bits(ours, truth)
    assert not same_bits(ours, torch.nn.functional.linear(x.float(), weight.float()))


@pytest.mark.parametrize("splits", [2, 3])
def test_splits_are_whole_multiples_of_64(splits: int) -> None:
    """352 inputs are 192 and 160, or 128, 128 and 96; without whole multiples there would be other parts."""
    x, weight = cancelling(2, 352, dtype=BF16, seed=3), cancelling(3, 352, dtype=BF16, seed=4)
    cuts = spans(352, splits, GRAIN)
    assert [cut.stop - cut.start for cut in cuts] == {2: [192, 160], 3: [128, 128, 96]}[splits]
    at = {"order": "tensor_core(h100)", "splits": splits, "output": FP32}
    ours = run("lm_head", x[None], w={"weight": weight}, **at)[0]
    assert same_bits(ours, by_hand("h100", x, weight, cuts))
    assert not same_bits(ours, by_hand("h100", x, weight, spans(352, splits)))


def test_a_bias_is_added_in_fp32_and_the_sum_rounded_once() -> None:
    x, weight, bias = (cancelling(*shape, dtype=BF16, seed=5) for shape in ((3, 64), (8, 64), (8,)))
    p = {"heads": None, "parallel": "column"}
    ours = run("linear", x[None], w={"weight": weight, "bias": bias}, p=p, order="tensor_core(a100)")[0]
    assert same_bits(ours, (by_hand("a100", x, weight) + bias.float()).bfloat16())


def test_tf32_is_multiplied_and_plain_fp32_left_to_torch() -> None:
    x, weight = cancelling(3, 64, dtype=FP32, seed=6), cancelling(4, 64, dtype=FP32, seed=7)
    at: dict[str, Any] = {"order": "tensor_core(h100)", "inputs": FP32, "output": FP32}
    assert same_bits(run("gate", x[None], w={"weight": weight}, **at)[0], torch.nn.functional.linear(x, weight))
    in_tf32 = run("gate", x[None], w={"weight": weight}, **at, tf32="yes")[0]
    assert not same_bits(in_tf32, run("gate", x[None], w={"weight": weight}, inputs=FP32, output=FP32, tf32="yes")[0])
    assert OPS["gate"].tokens.sees_rows({**at, "inputs": "fp32", "rows": "all", "tf32": "no"}, {})
    assert not OPS["gate"].tokens.sees_rows({**at, "inputs": "bf16", "rows": "all"}, {})


# The GEMMs with kv_b


def test_latents_are_expanded_as_fractions_have_it() -> None:
    latent, kv_b = cancelling(1, 1, 3, 32, dtype=BF16, seed=8), cancelling(12, 32, dtype=BF16, seed=9)
    ours = run("mla_expand", latent, None, w={"kv_b": kv_b}, p={"heads": 2}, kv_b_order="tensor_core(h100)")
    assert same_bits(ours.flatten(2)[0], by_hand("h100", latent[0, 0], kv_b).bfloat16())


def absorbed(order: str, width: int = 16) -> tuple[Callable[[], Tensor], Tensor, Tensor]:
    """A single token's attention to its own latent, whose probability is one: kv_b's value half is what is left."""
    latent, kv_b = cancelling(1, 1, 1, 32, dtype=BF16, seed=10), cancelling(2 * (width + 4), 32, dtype=BF16, seed=11)
    nope, rope = torch.ones(1, 1, 2, width).bfloat16(), torch.ones(1, 2, 1, 8).bfloat16()
    k_rope, mask = torch.ones(1, 1, 1, 8).bfloat16(), torch.ones(1, 1, dtype=torch.bool)
    p = {"heads": 2, "value_dim": 4, "rope": {"rope_type": "default"}, "multiplier": None, "scale": None}
    at = {"projection": "absorbed", "kv_b_order": order}
    return lambda: run("mla", nope, rope, latent, k_rope, mask, w={"kv_b": kv_b}, p=p, **at), latent, kv_b


def test_an_absorbed_projection_is_on_the_tensor_core_too() -> None:
    attend, latent, kv_b = absorbed("tensor_core(h100)")
    values = kv_b.view(2, 20, 32)[:, 16:].reshape(8, 32)
    assert same_bits(attend()[0], by_hand("h100", latent[0, 0], values).bfloat16())
    with pytest.raises(RefusedError, match=r"kv_b_order: 8 inputs, and h100 takes 16 bf16 at a time"):
        absorbed("tensor_core(h100)", width=8)[0]()


def test_no_row_depends_on_others() -> None:
    x, weight = cancelling(7, 160, dtype=BF16, seed=12), cancelling(9, 160, dtype=BF16, seed=13)
    whole = run("gate", x[None], w={"weight": weight}, order="tensor_core(h100)")[0]
    alone = [run("gate", row[None, None], w={"weight": weight}, order="tensor_core(h100)")[0] for row in x]
    assert same_bits(whole, torch.cat(alone))
    assert math.isfinite(float(whole.sum()))
