"""Attention: splits and their merges, tiles of keys, where probabilities are rounded, what is divided when.

q and k are small integers, so that every score is exact in any order, and each column of v has at most one number in
any 64 neighbouring keys (128 where tiles are that long), so that a tile's second product has one term. Exponentials are
rounded correctly on both sides, and neither side contracts a product and an addition: a GPU may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from moeparity.numerics import cuda
from moeparity.ops.kernels import attention as kernel
from moeparity.ops.kernels import exponentials, flash, flash_merges
from moeparity.ops.kernels.key_tiles import Tile
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

BLIND = "the two dot products of a tile; exponentials (correctly rounded); contraction; the sum of a tile's row"
BLINDED = ("implementation", "row_sum", "tf32", "rows", "tensor", "blocks", "q_block")
"""Attributes that this data tells nothing of."""


def keys(batch: int, length: int, heads: int, width: int, seed: int) -> Tensor:
    """[B, S, G, D], integers from -2 to 2."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, (batch, length, heads, width), generator=g).to(BF16)


def sparse(batch: int, length: int, heads: int, width: int, apart: int, seed: int) -> Tensor:
    """[B, S, G, V]: in each column one number in `apart` keys, from a place of its own on."""
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(0, apart, (batch, 1, heads, width), generator=g)
    places = torch.arange(length).view(1, -1, 1, 1)
    numbers = torch.randn(batch, length, heads, width, generator=g)
    return torch.where((places - first) % apart == 0, numbers, 0).to(BF16)


def attention_at(**at: Any) -> dict[str, Any]:
    """As Triton kernels are: ascending tiles, exp, one division at the end."""
    base: dict[str, Any] = {
        "implementation": "flash",
        "kv_order": "ascending",
        "exponential": "exp",
        "normalize": "divide",
    }
    base |= {"scale_on": "scores", "scores_order": "native", "values_order": "native"}
    base |= {"rescale_above": 0, "contraction": "none"}
    sites = {"probabilities": BF16, "output": BF16, "split": FP32, "tf32": "no", "row_sum": "sequential"}
    return {**base, **sites, "splits": 1, "rows": "all", "tensor": 1, "blocks": 0, "sink": "start", **at}


def into(output: torch.dtype) -> str:
    """What a table says of an output that is not rounded to 16 bits, so that more of what was before it shows."""
    return " into fp32" if output == FP32 else ""


def unfused(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """A product and an addition, each rounded, as the interpreter has them."""
    return x * y + z


def attended(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, window: int = 0, sinks: Tensor | None = None, **at: Any
) -> Tensor:
    """q [B, T, heads, D], the last T of each sequence's tokens, k and v [B, S, G, D] -> [B, T, heads, V]."""
    p, w = {"window": window or None}, {} if sinks is None else {"sinks": sinks}
    outs = []
    for i, length in enumerate(lengths.tolist()):
        keys_of, values_of = (x[i : i + 1, :length].transpose(1, 2) for x in (k, v))
        mask = torch.ones(1, length, dtype=torch.bool)
        with patch.object(flash, "fma", unfused), patch.object(flash_merges, "fma", unfused):
            out = kernel.attention(
                q[i : i + 1].transpose(1, 2), keys_of, values_of, mask, w=w, p=p, at=attention_at(**at)
            )
        outs.append(out.view(1, q.shape[1], q.shape[2], v.shape[-1]))
    return torch.cat(outs)


def decode_case(program: str, heads: int, groups: int, splits: int, unit: int, output: torch.dtype) -> Case:
    """Keys cut for each sequence, one of which has fewer than splits and one that the splits do not divide."""
    lengths = torch.tensor([150, 37, splits - 1, 1])
    q = keys(4, 1, heads, 64, seed=1)
    k, v = keys(4, 150, groups, 64, seed=2), sparse(4, 150, groups, 64, 64, seed=3)
    at = {"splits": splits, "split_by": "keys", "split_unit": unit, "q_block": 1, "merge": "online", "kv_block": 32}
    at |= {"output": output}

    def decoded(**changes: Any) -> Outputs:
        return {"output": attended(q, k, v, lengths, **{**at, **changes}).squeeze(1)}

    choices = attention_at(**at)
    return Case(
        program=program,
        kernel="_fwd_grouped_kernel_stage1, _fwd_kernel_stage2",
        kind="decode",
        shapes=f"{heads} heads over {groups}, {splits} splits, 1 to 150 keys, bf16{into(output)}",
        arguments={
            "q": q.squeeze(1),
            "k": k,
            "v": v,
            "lengths": lengths,
            "splits": splits,
            "scale": 64**-0.5,
            "latent": False,
            "output": output,
        },
        ours=decoded,
        other_outputs=lambda: (
            decoded(merge="at_once", splits_order="sequential") if output == FP32 else decoded(probabilities=FP32)
        ),
        says="splits of ceil(keys / splits), tiles of 32 from each split's first key, ascending; p to bf16; "
        "merged as they come, fp32 between, divided once",
        recorded=(Seen(op="attention", at=choices, blind=(*BLINDED, "sink", *(("split_by",) if unit > 1 else ()))),),
        blind=BLIND,
    )


def latent_case(program: str, splits: int, unit: int) -> Case:
    """MLA: all heads attend to one latent of 512 numbers with 64 of the rotary embedding; values are latents."""
    lengths = torch.tensor([150, 37, splits - 1, 1])
    q, latent, rotated = keys(4, 1, 16, 576, seed=1), sparse(4, 150, 1, 512, 64, seed=3), keys(4, 150, 1, 64, seed=2)
    latent = latent.sign()
    k = torch.cat([latent, rotated], dim=-1)
    at = {"splits": splits, "split_by": "keys", "split_unit": unit, "q_block": 1, "merge": "online", "kv_block": 32}
    at |= {"output": FP32}

    def decoded(**changes: Any) -> Outputs:
        return {"output": attended(q, k, latent, lengths, **{**at, **changes}).squeeze(1)}

    inputs = {"q": q.squeeze(1), "k": k, "v": latent, "lengths": lengths, "splits": splits, "scale": 576**-0.5}
    blind = (*BLINDED, "output", *(("split_by",) if unit > 1 else ()))
    choices = {name: value for name, value in attention_at(**at).items() if name != "sink"}
    return Case(
        program=program,
        kernel="_fwd_grouped_kernel_stage1 (MLA), _fwd_kernel_stage2",
        kind="decode",
        shapes=f"16 heads over a latent of 512 + 64, {splits} splits, 1 to 150 keys, bf16 into fp32",
        arguments={**inputs, "latent": True, "output": FP32},
        ours=decoded,
        other_outputs=lambda: decoded(probabilities=FP32),
        says="as without a latent: scores of both parts in one fp32 sum, values are the latents as they are stored",
        recorded=(Seen(op="mla", at={**choices, "projection": "absorbed"}, blind=blind),),
        blind=BLIND,
    )


def unified_case(tokens: int, heads: int, groups: int, window: int, output: torch.dtype, *, sinks: bool) -> Case:
    """2D: a prefill in tiles of 32 keys from the first key on."""
    lengths = torch.tensor([150, tokens])
    q, k, v = keys(2, tokens, heads, 64, 1), keys(2, 150, groups, 64, 2), sparse(2, 150, groups, 64, 64, 3)
    sink = random(heads, dtype=FP32, seed=4) * 4 if sinks else None
    tile = 32

    def result(**at: Any) -> Outputs:
        return {"output": attended(q, k, v, lengths, window, sink, **{"kv_block": tile, "output": output, **at})}

    clause = f"{', window ' + str(window) if window else ''}{', sinks' if sinks else ''}"
    blind = (*BLINDED, "splits", *(() if sinks else ("sink",)))
    return Case(
        program="live_vllm",
        kernel="kernel_unified_attention (2D)",
        kind="unified",
        shapes=f"{tokens} queries, {heads} heads over {groups}, to 150 keys{clause}, bf16{into(output)}",
        arguments={
            "q": q,
            "k": k,
            "v": v,
            "lengths": lengths,
            "segments": 0,
            "window": window,
            "sinks": sink,
            "output": output,
        },
        ours=result,
        other_outputs=lambda: result(kv_order="descending"),
        says="tiles of 32 keys from key 0, ascending; exp(scale * score - max); p to bf16; divided at the end"
        + ("; a sink is the first maximum, with sum 1" if sinks else ""),
        recorded=(Seen(op="attention", at=attention_at(kv_block=tile, output=output), blind=blind),),
        blind=BLIND,
    )


def prefill_case(program: str, tokens: int, heads: int, groups: int) -> Case:
    lengths = torch.tensor([tokens])
    q, k, v = keys(1, tokens, heads, 64, 1), keys(1, tokens, groups, 64, 2), sparse(1, tokens, groups, 64, 128, 3)

    def result(**at: Any) -> Outputs:
        return {"output": attended(q, k, v, lengths, **{"kv_block": 128, "exponential": "exp2", "output": FP32, **at})}

    return Case(
        program=program,
        kernel="_fwd_kernel (prefill)",
        kind="prefill",
        shapes=f"{tokens} queries, {heads} heads over {groups}, bf16 into fp32",
        arguments={"q": q, "k": k, "v": v},
        ours=result,
        other_outputs=lambda: result(exponential="exp"),
        says="tiles of 128 keys from key 0, ascending; exp2 of the difference of products; p to bf16; "
        "divided at the end",
        recorded=(
            Seen(
                op="attention",
                at=attention_at(kv_block=128, exponential="exp2", output=FP32),
                blind=(*BLINDED, "splits", "sink"),
            ),
        ),
        blind=BLIND,
    )


def extend_case(tokens: int, before: int, heads: int, groups: int, output: torch.dtype) -> Case:
    """New tokens behind a cached prefix, whose length is a multiple of a tile."""
    length = before + tokens
    q, k, v = keys(2, tokens, heads, 64, 1), keys(2, length, groups, 64, 2), sparse(2, length, groups, 64, 64, 3)
    at = {"kv_block": 64, "output": output}

    def result(**changes: Any) -> Outputs:
        return {"output": attended(q, k, v, torch.tensor([length] * 2), **{**at, **changes})}

    return Case(
        program="live_sglang",
        kernel="_fwd_kernel (extend)",
        kind="extend",
        shapes=f"{tokens} queries behind {before} keys, {heads} heads over {groups}, bf16{into(output)}",
        arguments={"q": q, "k": k, "v": v, "output": output},
        ours=result,
        other_outputs=lambda: result(kv_order="descending"),
        says="tiles of 64 keys, the prefix's first, ascending; exp(scale * score - max); p to bf16; divided at the end",
        recorded=(Seen(op="attention", at=attention_at(**at), blind=(*BLINDED, "sink", "splits")),),
        blind=BLIND,
    )


def merge_case(program: str, tokens: int, heads: int, output: torch.dtype) -> Case:
    """Two attentions to halves of the keys, stored, and what merges them."""
    q = random(1, heads, tokens, 64, dtype=BF16, seed=1)
    k, v = (random(1, heads, 90, 64, dtype=BF16, seed=seed) for seed in (2, 3))
    heads_of = flash.Heads(q=q, k=k, v=v, mask=torch.ones(1, 90, dtype=torch.bool), window=None, scale=0.125)
    at = attention_at(splits=2, merge="pairwise", split=output, kv_block=50, output=output)
    wide = flash.operands(heads_of, at)
    tiles = [Tile(wide.k[:, :, s], wide.v[:, :, s], torch.ones(1, 1, tokens, s.stop - s.start, dtype=torch.bool))
             for s in (slice(0, 50), slice(50, 90))]  # fmt: skip
    runs = [flash.attend(wide, [tile], at) for tile in tiles]
    a, b = (run.out.to(output).squeeze(0).transpose(0, 1).contiguous() for run in runs)
    lse_a, lse_b = (run.lse.squeeze(0).squeeze(-1).contiguous() for run in runs)

    choices = {name: at[name] for name in ("implementation", "splits", "merge", "split", "output")}

    stored = [replace(run, out=run.out.to(output)) for run in runs]

    def merged(**changes: Any) -> Outputs:
        with patch.object(flash_merges, "fma", unfused), patch.object(cuda, "expf", exponentials.exp):
            out = flash_merges.merged(stored, {**at, **changes}).to(output)
        return {"output": out.squeeze(0).transpose(0, 1)}

    return Case(
        program=program,
        kernel="merge_attn_states_kernel" if program == "live_vllm" else "merge_state_kernel",
        kind="merge",
        shapes=f"{tokens} x {heads} x 64 {'bf16' if output == BF16 else 'fp32'}",
        arguments={"a": a, "b": b, "lse_a": lse_a, "lse_b": lse_b},
        ours=merged,
        other_outputs=lambda: merged(merge="online"),
        says="weights that are quotients of fp32, two fp32 products and a sum, one rounding",
        recorded=(
            Seen(op="attention", at=choices, operands=output, blind=("implementation", "splits", "output", "merge")),
        ),
        blind="exp and log, the interpreter's on both sides, where `merge: pairwise` has CUDA's; contraction",
    )


def cases() -> Iterator[Case]:
    """Queries of one and several blocks, heads that share keys or do not, splits that leave some sequences without."""
    for splits in (4, 8):
        yield decode_case("live_vllm", 8, 2, splits, unit=1, output=FP32)
        yield decode_case("live_sglang", 8, 2, splits, unit=32, output=FP32)
    yield decode_case("live_vllm", 40, 1, 5, unit=1, output=BF16)
    yield decode_case("live_sglang", 40, 1, 5, unit=32, output=BF16)
    yield latent_case("live_vllm", 4, unit=1)
    yield latent_case("live_sglang", 4, unit=32)
    for tokens, heads, groups, window, sinks in ((40, 4, 2, 0, False), (70, 6, 1, 0, True), (40, 4, 4, 50, False)):
        yield unified_case(tokens, heads, groups, window, BF16 if sinks else FP32, sinks=sinks)
    yield prefill_case("live_vllm", 150, 4, 2)
    for program in ("live_vllm", "live_sglang"):
        yield merge_case(program, 37, 3, BF16)
        yield merge_case(program, 5, 2, FP32)
    yield extend_case(150, 0, 4, 2, FP32)
    yield extend_case(37, 64, 4, 4, BF16)
