"""Kernels with `tl.dot` as Triton's PTX for sm_90, on data that tell tensor cores apart.

Up to 32 rows a tile Triton emits `mma.sync`, from 64 on `wgmma`.
Products come in pairs that nearly cancel, so that a sum is what its terms were cut off at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from moeparity.numerics.block_scales import Grid
from moeparity.numerics.quantised import quantised
from moeparity.ops.kernels import quantised as kernel
from moeparity.ops.kernels.experts import experts
from tests.engines.cuda.compared import plan_values
from tests.engines.products import GRIDS
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.engines.triton_kernels.moe import combined, experts_at, routed
from tests.ops.plain import BF16, FP32

ORDER = "tensor_core(h100)"
INNOCENT = ("implementation", "gate_up", "activation", "product", "logistic", "tensor", "blocks", "master")
"""Choices of the experts that data in 8 bits tell nothing of."""
PARTIAL = 5
"""Axes of rows in partial sums."""
OTHERS = {
    "scaling": {"weight_first": "activation_first", "activation_first": "weight_first", "both": "activation_first"},
    "scaled_addition": {"fma": "rounded"},
}


def paired(x: Tensor) -> Tensor:
    """[.., K], K a multiple of 16: of each 16 numbers, 8 to 11 are 0 to 3."""
    groups = x.unflatten(-1, (-1, 16))
    return torch.cat([groups[..., :8], groups[..., :4], groups[..., 12:]], -1).flatten(-2)


def opposed(*shape: int, seed: int) -> Tensor:
    """bf16: of each 16 numbers of the last axis, 8 to 11 are -1 times 0 to 3, the rest smaller by 2^-15 to 2^-18.

    With paired numbers the large products leave nothing, and the small ones are cut off where the large ones say.
    """
    g = torch.Generator().manual_seed(seed)
    groups = paired(torch.randn(shape, generator=g)).unflatten(-1, (-1, 16))
    groups[..., 8:12] *= -1
    small = 2.0 ** -torch.randint(15, 19, groups.shape, generator=g)
    groups[..., 4:8] *= small[..., 4:8]
    groups[..., 12:] *= small[..., 12:]
    return groups.flatten(-2).to(BF16)


def experts_weights(count: int, hidden: int, width: int) -> tuple[Tensor, Tensor]:
    """gate_up [count, 2 width, hidden], down [count, hidden, width].

    A gate is the first channel of its token, which silu hands on where it is above 18. Rows of up are paired, so that
    the second GEMM gets pairs too.
    """
    up = paired(opposed(count, width, hidden, seed=2).mT).mT
    gate = torch.zeros(count, width, hidden, dtype=BF16)
    gate[..., 0] = 1
    return torch.cat([gate, up], 1), opposed(count, hidden, width, seed=3)


def tokens_of(count: int, hidden: int) -> Tensor:
    """[count, hidden], paired; the first channel is large."""
    g = torch.Generator().manual_seed(count)
    x = torch.randn(count, hidden, generator=g)
    x[:, 0] = torch.randint(18, 60, (count,), generator=g).float()
    return paired(x).to(BF16)


def experts_case(program: str, tokens: int, count: int, k: int, hidden: int, width: int) -> Case:
    """The engine's default tiles: of 16 rows for few tokens."""
    x, (gate_up, down) = tokens_of(tokens, hidden), experts_weights(count, hidden, width)
    ids, weights = routed(tokens, count, k, seed=4)
    activation = FP32 if program == "live_sglang" else BF16
    inputs: dict[str, Any] = {"x": x, "gate_up": gate_up, "down": down, "ids": ids, "weights": weights}
    if program == "live_sglang":
        inputs["deterministic"] = False

    def computed(order: str = ORDER, splits: int = 1, **grids: Any) -> Outputs:
        choices = experts_at(activation=activation, order=order, splits=splits, split=FP32, splits_order="sequential")
        choices |= {"partial": FP32, **grids}
        operands = x.unsqueeze(0), ids.unsqueeze(0), weights.unsqueeze(0)
        rows = experts(*operands, w={"gate_up": gate_up, "down": down}, p={}, at=choices)
        rows = rows.sum(1).to(BF16) if rows.dim() == PARTIAL else rows
        rows = rows.squeeze(0)
        return {"rows": rows, "output": combined(rows, None)}

    blind = ("implementation", "gate_up", "activation", "product", "tf32", "logistic", "tensor")
    # An H200 has the same instruction.
    choices = (
        experts_at(activation=activation, order=f"tensor_core({gpu})", splits=1, **GRIDS) for gpu in ("h100", "h200")
    )
    return Case(
        program=program,
        kernel="fused_moe_kernel",
        kind="experts",
        shapes=f"{tokens} tokens, {count} experts, top-{k}, {hidden} x {width} bf16",
        arguments=inputs,
        ours=computed,
        other_outputs=lambda: computed("tensor_core(a100)"),
        says="one chain over K on tensor cores, in tiles of 16 rows (`mma`) or 64 (`wgmma`)",
        recorded=tuple(Seen(op="experts", at=at, blind=blind) for at in choices),
        blind="silu and the sum over slots",
    )


def fp8_case(program: str, tokens: int, count: int, k: int, *, powers: bool) -> Case:
    """Weights in blocks of 128 x 128 and activations in groups of 128: every 128 products are a chain of their own.

    Of every other row the second chain takes away what the first one gave: what an fma leaves is the rounding of that.
    Where scales of activations are powers of two it is nearly all one what they meet first.
    """
    of_vllm = program == "live_vllm"
    profile = "vllm-fp8-blocks" if of_vllm else "sglang-fp8-blocks"
    at = {**plan_values(profile, "qwen3_moe", "experts", rows=tokens), "order": ORDER, "splits": 1}
    at |= {} if powers else {"activation_scale": "fp32", "activation_floor": 1e-10}
    x, stacked = _tokens_and_weights(tokens, count)
    ids, weights = routed(tokens, count, k, seed=4)
    codes = {name: [quantised(weight, _grid(at)) for weight in matrices] for name, matrices in stacked.items()}

    def computed(**changes: Any) -> Outputs:
        operands = x.unsqueeze(0), ids.unsqueeze(0), weights.unsqueeze(0)
        rows = experts(*operands, w=stacked, p={}, at={**at, **changes}).squeeze(0)
        return {"rows": rows, "output": combined(rows, None)}

    few = at["scaling"] == "weight_first"
    # An fma takes the last product, which is exact where scales are powers of two.
    shown = ("scaling",) if few and powers else ("scaled_addition",) if powers else ("scaling", "scaled_addition")
    grids = [name for name in at if name.startswith(("weight_", "activation_"))]
    blind = (*INNOCENT, *grids, *({"scaling", "scaled_addition"} - {*shown}))
    return Case(
        program=program,
        kernel="fused_moe_kernel (fp8 blocks)",
        kind="experts",
        shapes=f"{tokens} tokens, {count} experts, top-{k}, 256 x 256 fp8, scales {'2^n' if powers else 'fp32'}",
        arguments={
            "x": x, "ids": ids, "weights": weights, **({"powers": powers} if of_vllm else {}),
            **{name: torch.stack([each.codes for each in parts]) for name, parts in codes.items()},
            **{f"{name}_scales": torch.stack([each.scales for each in parts]) for name, parts in codes.items()},
        },
        ours=computed,
        other_outputs=lambda: computed(**{shown[0]: OTHERS[shown[0]][at[shown[0]]]}),
        says=f"128 products on tensor cores, `scaling: {at['scaling']}`, `scaled_addition: fma`",
        recorded=(Seen(op="experts", at={**at, "tensor": 1, "blocks": 0}, blind=blind),),
        blind="how numbers are rounded to fp8, which is written out on both sides; silu; the sum over slots",
    )  # fmt: skip


def _tokens_and_weights(tokens: int, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    """x [tokens, 256] and the weights of experts, bf16; both halves of x, and of up's rows, are alike."""
    g = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 128, generator=g)
    x[:, 0] = 60
    up, down = (_taken_away(torch.randn(count, rows, 128, generator=g)) for rows in (128, 256))
    # A gate is its token's first channel, which silu hands on where it is above 18.
    gate = torch.zeros(count, 256, 256)
    gate[..., 0] = 1
    gate_up = torch.cat([gate, up.repeat(1, 2, 1)], 1)
    return x.repeat(1, 2).to(BF16), {"gate_up": gate_up.to(BF16), "down": down.to(BF16)}


def _taken_away(weight: Tensor) -> Tensor:
    """[.., rows, 128] and as many columns more: every other row is the same negated."""
    signs = torch.where(torch.arange(weight.shape[-2]) % 2 == 0, -1.0, 1.0)[:, None]
    return torch.cat([weight, signs * weight], -1)


def _grid(at: Mapping[str, Any]) -> Grid:
    return kernel.grid_of_weight(at)


def cases() -> Iterator[Case]:
    """K that blocks of 64 divide, and K with a rest; one token, and several for one expert."""
    for program in ("live_vllm", "live_sglang"):
        yield experts_case(program, 1, 64, 2, 256, 128)
        yield experts_case(program, 6, 12, 3, 224, 96)
        yield experts_case(program, 200, 5, 3, 256, 128)


def fp8_cases() -> Iterator[Case]:
    """vLLM's tiles of 16 rows, whose operands change places, and of 64; SGLang's."""
    for powers in (True, False):
        yield fp8_case("live_vllm", 6, 4, 2, powers=powers)
        yield fp8_case("live_vllm", 150, 3, 2, powers=powers)
    yield fp8_case("live_sglang", 150, 3, 2, powers=False)
