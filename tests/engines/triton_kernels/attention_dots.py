"""Attention as Triton's PTX for sm_90: products on tensor cores, exponentials and quotients of approximate
instructions, of data that tell tensor cores apart.

In each 16 channels large products of a query and a key cancel, and in each 16 keys large values of equal weight do, so
that scores and outputs are what their terms were cut off at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moeparity.ops.kernels import attention as kernel
from moeparity.ops.registry import OPS
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

ORDER, A100 = "tensor_core(h100)", "tensor_core(a100)"
BY_WARPS = "blocks(2) | fold_hi(4) | fold_hi"
"""Sum of a row in tiles of 16 rows: warps lie side by side, each with 8 keys, and a thread has two of them."""
BY_THREADS = "blocks(2) | halves(8) | halves(8) | halves(8) | fold_hi"
"""In tiles of 64 rows and more a warp has all 64 keys of a row, and a thread a tree of 16."""
BLIND = ("implementation", "tf32", "rows", "tensor", "blocks")
"""Attributes that this data tells nothing of."""


def paired(x: Tensor, sign: int = 1) -> Tensor:
    """Of each 16 numbers of the last axis 8 to 11 are 0 to 3, or these negated; the rest at the end stays."""
    whole = x.shape[-1] // 16 * 16
    groups = x[..., :whole].unflatten(-1, (-1, 16)).clone()
    groups[..., 8:12] = sign * groups[..., :4]
    return torch.cat([groups.flatten(-2), x[..., whole:]], -1)


def cancelling(batch: int, tokens: int, length: int, heads: int, groups: int, width: int) -> tuple[Tensor, ...]:
    """bf16 q [B, T, heads, D], k and v [B, S, groups, D]."""
    g = torch.Generator().manual_seed(length + width)
    q, k, v = (
        torch.randn(batch, n, count, width, generator=g)
        for n, count in ((tokens, heads), (length, groups), (length, groups))
    )
    large = torch.arange(width) % 16 % 8 < 4
    q, k = (torch.where(large, x * 2.0**7, x) for x in (q, k))
    q, k = paired(q), paired(paired(k, -1).transpose(1, 3)).transpose(1, 3)
    small = 2.0 ** -torch.randint(15, 19, v.shape, generator=g)
    large = (torch.arange(length) % 16 % 8 < 4).view(1, -1, 1, 1)
    v = paired(torch.where(large, v, v * small).transpose(1, 3), -1).transpose(1, 3)
    return tuple(x.to(BF16).contiguous() for x in (q, k, v))


def triton_at(**at: Any) -> dict[str, Any]:
    """What all of these kernels have."""
    base: dict[str, Any] = {"implementation": "flash", "order": "native", "kv_order": "ascending"}
    base |= {"exponential": "triton", "normalize": "div_full", "scale_on": "scores", "contraction": "sum"}
    base |= {"scores_order": ORDER, "values_order": ORDER, "row_sum": BY_WARPS, "rescale_above": 0, "tf32": "no"}
    base |= {"splits": 1, "rows": "all", "tensor": 1, "blocks": 0, "probabilities": BF16, "kv_block": 32}
    return {**base, **at}


def attended(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, window: int = 0, sinks: Tensor | None = None, **at: Any
) -> Tensor:
    """q [B, T, heads, D], the last T of each sequence's tokens, k and v [B, S, G, D] -> [B, T, heads, V]."""
    p, w = {"window": window or None}, {} if sinks is None else {"sinks": sinks}
    values, outs = triton_at(**{"sink": "start", **at}), []
    for i, length in enumerate(lengths.tolist()):
        keys, values_of = (x[i : i + 1, :length].transpose(1, 2) for x in (k, v))
        mask = torch.ones(1, length, dtype=torch.bool)
        out = kernel.attention(q[i : i + 1].transpose(1, 2), keys, values_of, mask, w=w, p=p, at=values)
        outs.append(out.view(1, q.shape[1], q.shape[2], v.shape[-1]))
    return torch.cat(outs)


OTHERS: dict[str, Any] = {
    "order": ORDER,
    "scores_order": "native",
    "values_order": "native",
    "kv_order": "descending",
    "exponential": "exp",
    "normalize": "divide",
    "contraction": "none",
    "row_sum": "sequential",
    "rescale_above": 8,
    "kv_block": 128,
    "sink": "end",
    "splits": 3,
    "split_by": "seen",
    "split_unit": 48,
    "merge": "at_once",
    "split": BF16,
}
"""What each choice is held against. One that changes no number of a case is one that it tells nothing of."""
OF_SEGMENTS = ("order", "exponential", "normalize", "splits")
"""Fixed by `merge: segments`, which is one kernel."""
LEAST = 0.01
"""The least share of outputs that another value changes, of what a case tells."""


def another(at: Mapping[str, Any], choice: str) -> dict[str, Any] | None:
    """Another value of a choice; None where it has no effect, or no other value that may stand there."""
    fixed = OF_SEGMENTS if at.get("merge") == "segments" else ()
    of_runs = ("splits", "split_by", "split_unit", "merge", "split")
    if choice not in at or choice not in OTHERS or choice in fixed or (at["splits"] == 1 and choice in of_runs):
        return None
    further: dict[str, dict[str, Any]] = {
        "merge": {"splits_order": "sequential(fma)", "split": FP32},
        "split_by": {"q_block": 1},
    }
    return {choice: OTHERS[choice], **further.get(choice, {})}


def recorded_node(op: str, result: Callable[..., Outputs], gpu: str, **at: Any) -> Seen:
    """What a case tells: choices of which another value changes its numbers, and what has no other value here."""
    choices, ours = triton_at(**at), result()["output"]
    choices |= dict.fromkeys(("scores_order", "values_order"), f"tensor_core({gpu})")
    shares = {}
    for choice in choices:
        changed = another(choices, choice)
        if changed is not None:
            shares[choice] = float((result(**changed)["output"] != ours).float().mean())
    blind = [choice for choice, share in shares.items() if share < LEAST]
    at = {name: value for name, value in choices.items() if OPS[op].attribute(name) is not None}
    return Seen(op=op, at=at, blind=(*BLIND, *blind))


def nodes(op: str, result: Callable[..., Outputs], **at: Any) -> tuple[Callable[[], Seen], ...]:
    """Of an H100, and of an H200, which has the same instruction."""
    return tuple(partial(recorded_node, op, result, gpu, **at) for gpu in ("h100", "h200"))


def into(output: torch.dtype) -> str:
    """What a table says of an output that is not rounded to 16 bits, so that more of what was before it shows."""
    return " into fp32" if output == FP32 else ""


def unified_case(
    tokens: int, lengths: list[int], heads: int, groups: int, width: int, *,
    window: int = 0, sinks: bool = False, segments: int = 0, output: torch.dtype = FP32,
) -> Case:  # fmt: skip
    """vLLM's, with `segments` its 3D form, whose second kernel merges them."""
    q, k, v = cancelling(len(lengths), tokens, max(lengths), heads, groups, width)
    sink = random(heads, dtype=FP32, seed=4) * 4 if sinks else None
    at: dict[str, Any] = {"output": output}
    if segments:
        at |= {"kv_block": 16, "splits": segments, "split_by": "tiles", "merge": "segments"}

    def result(**changes: Any) -> Outputs:
        return {"output": attended(q, k, v, torch.tensor(lengths), window, sink, **{**at, **changes})}

    clause = f"{', window ' + str(window) if window else ''}{', sinks' if sinks else ''}"
    recorded = {**at, **({"sink": "start"} if sinks else {})}
    return Case(
        program="live_vllm",
        kernel=f"kernel_unified_attention ({'3D), reduce_segments' if segments else '2D)'}",
        kind="unified",
        shapes=f"{tokens} queries, {heads} heads of {width} over {groups}, to {max(lengths)} keys{clause}, "
        f"bf16{into(output)}",
        arguments={
            "q": q, "k": k, "v": v, "lengths": torch.tensor(lengths), "segments": segments, "window": window,
            "sinks": sink, "output": output,
        },
        ours=result,
        other_outputs=lambda: result(scores_order=A100, values_order=A100),
        says=f"tiles of {16 if segments else 32} keys"
        + (", segments of whole tiles that are divided once" if segments else ""),
        nodes=nodes("attention", result, **recorded),
    )  # fmt: skip


def decode_case(
    program: str, heads: int, groups: int, width: int, splits: int, unit: int, output: torch.dtype = FP32
) -> Case:
    """Keys cut for each sequence, one of which has a single key."""
    lengths = torch.tensor([150, 37, 1])
    q, k, v = cancelling(3, 1, 150, heads, groups, width)
    at = {"splits": splits, "split_by": "keys", "split_unit": unit, "q_block": 1, "merge": "online", "split": FP32}
    at |= {"output": output}

    def decoded(**changes: Any) -> Outputs:
        return {"output": attended(q, k, v, lengths, **{**at, **changes}).squeeze(1)}

    return Case(
        program=program,
        kernel="_fwd_grouped_kernel_stage1, _fwd_kernel_stage2",
        kind="decode",
        shapes=f"{heads} heads of {width} over {groups}, {splits} splits, 1 to 150 keys, bf16{into(output)}",
        arguments={
            "q": q.squeeze(1), "k": k, "v": v, "lengths": lengths, "splits": splits, "scale": width**-0.5,
            "latent": False, "output": output,
        },
        ours=decoded,
        other_outputs=lambda: decoded(scores_order=A100, values_order=A100),
        says="splits of ceil(keys / splits), tiles of 32 from each one's first key; merged as they come",
        nodes=nodes("attention", decoded, **at),
    )  # fmt: skip


def latent_case(program: str, splits: int, unit: int) -> Case:
    """MLA: all heads attend to one latent of 512 numbers with 64 of the rotary embedding; values are latents."""
    lengths = torch.tensor([150, 37, 1])
    q, k, v = cancelling(3, 1, 150, 16, 1, 576)
    # Latents are values too. Their part of a score is small, so that keys of equal weight stay so nearly.
    q, k = torch.cat([q[..., :512] * 2.0**-6, q[..., 512:]], -1), torch.cat([v[..., :512], k[..., 512:]], -1)
    at = {"splits": splits, "split_by": "keys", "split_unit": unit, "q_block": 1, "merge": "online", "split": FP32}
    at |= {"output": FP32}

    def decoded(**changes: Any) -> Outputs:
        return {"output": attended(q, k, k[..., :512], lengths, **{**at, **changes}).squeeze(1)}

    inputs = {"q": q.squeeze(1), "k": k, "v": k[..., :512].contiguous(), "lengths": lengths, "splits": splits}
    return Case(
        program=program,
        kernel="_fwd_grouped_kernel_stage1 (MLA), _fwd_kernel_stage2",
        kind="decode",
        shapes=f"16 heads over a latent of 512 + 64, {splits} splits, 1 to 150 keys, bf16 into fp32",
        arguments={**inputs, "scale": 576**-0.5, "latent": True, "output": FP32},
        ours=decoded,
        other_outputs=lambda: decoded(scores_order=A100, values_order=A100),
        says="as without a latent: scores of both parts in one chain",
        nodes=nodes("mla", decoded, **at),
    )


def extend_case(tokens: int, heads: int, groups: int, width: int, output: torch.dtype = FP32) -> Case:
    """Prompts without a cached prefix, in tiles of 128 queries (`wgmma`)."""
    q, k, v = cancelling(2, tokens, tokens, heads, groups, width)
    at = {"kv_block": 64, "row_sum": BY_THREADS, "output": output}

    def result(**changes: Any) -> Outputs:
        return {"output": attended(q, k, v, torch.tensor([tokens] * 2), **{**at, **changes})}

    return Case(
        program="live_sglang",
        kernel="_fwd_kernel (extend)",
        kind="extend",
        shapes=f"{tokens} queries, {heads} heads of {width} over {groups}, bf16{into(output)}",
        arguments={"q": q, "k": k, "v": v, "output": output},
        ours=result,
        other_outputs=lambda: result(scores_order=A100, values_order=A100),
        says="tiles of 64 keys; a tree of 16 exponentials in a thread, then four threads",
        nodes=nodes("attention", result, **at),
    )


def cases() -> Iterator[Case]:
    """Heads that share keys or do not, one key head, one token, odd lengths, windows, sinks."""
    yield unified_case(40, [150, 40], 8, 2, 128)
    yield unified_case(37, [151, 37], 6, 1, 64, sinks=True, output=BF16)
    yield unified_case(1, [150, 37, 1], 8, 1, 128)
    yield unified_case(70, [90, 70], 4, 4, 64, window=50)
    yield unified_case(5, [50], 20, 1, 128)
    yield unified_case(1, [500, 37, 1], 8, 2, 128, segments=16)
    yield unified_case(1, [500, 37, 290], 6, 1, 64, segments=16, sinks=True)
    yield unified_case(1, [500, 37], 4, 4, 128, segments=16, window=100)
    for program, unit in (("live_vllm", 1), ("live_sglang", 32)):
        yield decode_case(program, 8, 2, 128, 4, unit)
        yield latent_case(program, 4, unit)
    yield decode_case("live_sglang", 20, 1, 64, 1, 32, output=BF16)
    yield extend_case(150, 4, 2, 128)
    yield extend_case(37, 3, 1, 64, output=BF16)
