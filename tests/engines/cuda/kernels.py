"""Engines' CUDA kernels run through their PTX, and the project's nodes on the same numbers: every comparison there is.

`python -m tests.engines.cuda.kernels` prints the table of docs/ptx.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from tests.engines.cuda import (
    activations,
    collectives,
    combines,
    cute_dsl,
    merges,
    norms,
    quantisers,
    ropes,
    routers,
    sglang,
    sglang_caches,
    sglang_gemms,
    te,
    tensorrt_llm,
)
from tests.engines.cuda.compared import Compared
from tests.engines.cuda.norms import Rows
from tests.engines.cuda.routers import Case

Comparison = Callable[[], Compared]


def of_norms(shapes: list[tuple[int, int]]) -> Iterator[Comparison]:
    """Norms at shapes (hidden, rows); of those that 8 divides FlashInfer's too, and sums of experts' rows."""
    for hidden, tokens in shapes:
        rows = Rows.drawn(hidden, tokens)
        yield lambda rows=rows: norms.vllm_rms_norm(rows)  # type: ignore[misc]
        yield lambda rows=rows: norms.vllm_add_rms_norm(rows)  # type: ignore[misc]
        if hidden % 8 == 0:
            yield lambda rows=rows: quantisers.norm_fp8(rows)  # type: ignore[misc]
            yield lambda rows=rows: norms.flashinfer_rms_norm(rows)  # type: ignore[misc]
            yield lambda rows=rows: norms.flashinfer_rms_norm(rows, gemma=True)  # type: ignore[misc]
            yield lambda rows=rows: norms.flashinfer_add_rms_norm(rows)  # type: ignore[misc]
            yield lambda rows=rows: combines.vllm_moe_sum(rows)  # type: ignore[misc]


EXPERTS = (8, 16, 60, 64, 128, 160, 192, 256, 300, 384, 512)
"""Numbers of experts that vLLM's gate with softmax is run with, on both sides of each rule of its launch."""


def of_routers(tokens: int) -> Iterator[Comparison]:
    """Gates at numbers of experts on both sides of each of their rules."""
    for experts in EXPERTS:
        yield lambda e=experts: routers.top_k_softmax(Case(tokens=tokens, experts=e, k=min(8, e // 2)))  # type: ignore[misc]
    for experts in (64, 128, 256):
        yield lambda e=experts: routers.top_k_sigmoid(Case(tokens=tokens, experts=e, k=6))  # type: ignore[misc]
    deepseek = Case(tokens=tokens, experts=256, k=8, groups=8, top_groups=4, biased=True)
    yield lambda: routers.grouped_top_k(deepseek)
    yield lambda: routers.no_aux_tc(replace(deepseek, scale=2.5))
    # As SGLang calls it.
    yield lambda: routers.no_aux_tc(deepseek)
    wide = Case(tokens=tokens, experts=160, k=6, groups=4, top_groups=2, biased=True)
    yield lambda: routers.generic_grouped_top_k(wide)
    for experts in (128, 160, 256, 384):
        single = Case(tokens=tokens, experts=experts, k=8, biased=True)
        yield lambda case=single: routers.single_group_top_k(case)  # type: ignore[misc]
        yield lambda case=single: routers.no_aux_tc(replace(case, scale=2.5))  # type: ignore[misc]


def of_rows(tokens: int) -> Iterator[Comparison]:
    """Activations, rotary embedding, quantisers, the cache, merges."""
    for width in (768, 1001, 2880):
        yield lambda w=width: activations.vllm_silu_and_mul(tokens, w)  # type: ignore[misc]
        yield lambda w=width: activations.flashinfer_silu_and_mul(tokens, w)  # type: ignore[misc]
    for turned, pairs in ((128, False), (64, True), (64, False)):
        yield lambda t=turned, p=pairs: ropes.vllm_rotary(tokens, (8, 2), 128, t, pairs=p)  # type: ignore[misc]
    for pairs in (False, True):
        yield lambda p=pairs: ropes.flashinfer_rotary(tokens, (8, 2), pairs=p)  # type: ignore[misc]
        yield lambda fp8=pairs: quantisers.cache_store(tokens, 2, 128, fp8=fp8)  # type: ignore[misc]
        yield lambda fp8=pairs: quantisers.latent_store(tokens, 512, 64, fp8=fp8)  # type: ignore[misc]
    for width in (1024, 1001, 100):
        yield lambda w=width: quantisers.static_fp8(tokens, w)  # type: ignore[misc]
        yield lambda w=width: quantisers.per_token_fp8(tokens, w)  # type: ignore[misc]
    yield lambda: quantisers.per_group_fp8(tokens, 1024)
    yield lambda: norms.flashinfer_qk_rms_norm(tokens, 8, 128)
    yield lambda: merges.vllm_merge(tokens, 4, 128)
    yield lambda: merges.flashinfer_merge(tokens, 4, 128)


def of_jit(tokens: int) -> Iterator[Comparison]:
    """What SGLang compiles when it is used: its own kernels, and FlashInfer's norms in CuTe-DSL."""
    yield lambda: sglang.head_norms(tokens, 32, 4)
    for pairs in (False, True):
        yield lambda p=pairs: sglang.rope(9, 8, 2, pairs=p)  # type: ignore[misc]
    yield lambda: sglang.silu_and_mul(tokens, 1408)
    for hidden, count in ((2048, 3 * tokens // 2), (7168, tokens // 3), (1536, 99), (512, 99)):
        rows = Rows.drawn(hidden, count)
        yield lambda rows=rows: cute_dsl.rms_norm(rows)  # type: ignore[misc]
        if hidden > 512:
            yield lambda rows=rows: cute_dsl.add_rms_norm(rows)  # type: ignore[misc]


def of_few_rows() -> Iterator[Comparison]:
    """SGLang's stores and its gate, which have tests of their own (test_sglang.py)."""
    yield lambda: sglang_caches.head_store(64)
    yield lambda: sglang_caches.latent_store(64)
    for count in sglang_gemms.ROWS:
        yield lambda n=count: sglang_gemms.tiny_gate(n, experts=64)  # type: ignore[misc]


def of_transformer_engine() -> Iterator[Comparison]:
    """Rows in whole groups of 4 and not, at hidden sizes that have a kernel of their own and at others."""
    for hidden, count in ((2048, 400), (2048, 201), (128, 2001), (7168, 64), (512, 400), (1536, 199)):
        yield lambda h=hidden, n=count: te.rms_norm(h, n)  # type: ignore[misc]


def of_tensorrt_llm(tokens: int) -> Iterator[Comparison]:
    """Hidden sizes of fewer and of more than 256 threads, numbers of experts on both sides of the router's rules."""
    for slots, hidden in ((8, 2048), (6, 7168), (2, 1000)):
        yield lambda k=slots, h=hidden: tensorrt_llm.finalize(tokens, k, h)  # type: ignore[misc]
    for width, gated in ((768, False), (768, True), (2048, False), (2880, True), (104, False)):
        yield lambda w=width, g=gated: tensorrt_llm.activation(tokens, w, gated=g)  # type: ignore[misc]
    for scale in (1.0, 2.5):
        grouped = Case(tokens=24, experts=256, k=8, groups=8, top_groups=4, biased=True, scale=scale)
        yield lambda case=grouped: tensorrt_llm.no_aux_tc(case)  # type: ignore[misc]
        for experts in (128, 160, 256, 384):
            single = Case(tokens=24, experts=experts, k=8, biased=True, scale=scale)
            yield lambda case=single: tensorrt_llm.no_aux_tc(case)  # type: ignore[misc]
    for hidden, count in ((2048, 20 * tokens), (7168, 6 * tokens), (1536, 99), (512, 99)):
        rows = Rows.drawn(hidden, count)
        yield lambda rows=rows: cute_dsl.rms_norm(rows, "TensorRT-LLM")  # type: ignore[misc]
        if hidden > 512:
            yield lambda rows=rows: cute_dsl.add_rms_norm(rows, "TensorRT-LLM")  # type: ignore[misc]


def of_ranks(ranks: tuple[int, ...], shapes: list[tuple[int, int]]) -> Iterator[Comparison]:
    """All-reduces at shapes (hidden, tokens)."""
    for count in ranks:
        for hidden, tokens in shapes:
            for stages in (1, 2):
                yield lambda r=count, t=tokens, h=hidden, s=stages: collectives.vllm_all_reduce(r, t, h, s)  # type: ignore[misc]
            if count not in collectives.RANKS:
                continue
            for shots in (1, 2):
                for more in ({}, {"fp32": True}, {"norm": True}):
                    yield lambda r=count, t=tokens, h=hidden, s=shots, m=more: (  # type: ignore[misc]
                        collectives.flashinfer_all_reduce(r, t, h, shots=s, **m)
                    )


def small() -> Mapping[str, list[Comparison]]:
    """What the tests run, by idea."""
    return {
        "norms": list(of_norms([(2048, 8), (7168, 3), (1024, 260), (2880, 5), (128, 9), (1001, 4)])),
        "routers": list(of_routers(24)),
        "rows": list(of_rows(9)),
        "jit": list(of_jit(200)),
        "transformer engine": list(of_transformer_engine()),
        "tensorrt-llm": list(of_tensorrt_llm(9)),
        "ranks": list(of_ranks((2, 4, 6, 8), [(2048, 3), (2880, 9)])),
    }


def large() -> Iterator[Comparison]:
    """What the table shows."""
    yield from of_norms([(7168, 64), (4096, 300), (2880, 7)])
    yield lambda: routers.single_group_top_k(Case(tokens=1030, experts=256, k=8, biased=True))
    yield from of_routers(256)
    yield from of_rows(64)
    yield from of_jit(200)
    yield from of_few_rows()
    yield from of_transformer_engine()
    yield from of_tensorrt_llm(11)
    yield from of_ranks((8,), [(7168, 64)])
    yield from of_ranks((2, 4, 6), [(2880, 9)])


def main() -> None:
    """Prints the table, a row for each kernel."""
    torch.set_num_threads(1)
    rows: dict[tuple[str, str, str], list[Compared]] = {}
    for comparison in large():
        compared = comparison()
        rows.setdefault((compared.version, compared.kernel, compared.against), []).append(compared)
    print("| engine | kernel | shapes | numbers | differ | control | values verified | assumed | most s |")
    print("|---" * 9 + "|")
    for (version, kernel, against), of_kernel in rows.items():
        controls = [str(row.control) for row in of_kernel if row.control is not None]
        cells = (
            version, kernel, "; ".join(row.shape for row in of_kernel), f"{sum(row.numbers for row in of_kernel):,}",
            f"{sum(row.differ for row in of_kernel):,}", ", ".join(controls), _values(of_kernel) or f"none: {against}",
            ", ".join(f"`{name}`" for name in sorted({name for row in of_kernel for name in row.assumed})) or "nothing",
            f"{max(row.seconds for row in of_kernel):.2f}",
        )  # fmt: skip
        print(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")


def _values(of_kernel: list[Compared]) -> str:
    """All values that some shape verifies, op by op."""
    values: dict[str, dict[str, list[str]]] = {}
    for op, of_op in (verified for row in of_kernel for verified in row.verified.items()):
        for name, value in of_op.items():
            texts = values.setdefault(op, {}).setdefault(name, [])
            shown = str(value).removeprefix("torch.")
            texts += [shown] * (shown not in texts)
    ops = (
        f"`{op}`: " + ", ".join(f"{name} {' / '.join(texts)}" for name, texts in of.items())
        for op, of in values.items()
    )
    return "; ".join(ops)


if __name__ == "__main__":
    main()
