"""Flash attention in every form against one number at a time, bit for bit: dot products are exact in this data."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.ops.attention import ATTENTION
from moeparity.ops.kernels.attention import attention
from tests.ops.flash_by_hand import BLOCK, DTYPES, PLAIN, SINKS, SITES, TOKENS, WIDTH, by_hand, check, operands
from tests.ops.plain import BF16, FP32, assert_bits
from tests.ops.scalar import runs_of


@pytest.mark.parametrize("exponential", ["exp2_fma", "exp2", "exp"])
@pytest.mark.parametrize("kv_order", ["descending", "ascending"])
@pytest.mark.parametrize("normalize", ["reciprocal", "divide"])
@pytest.mark.parametrize("kv_block", [3, 5, 64])
@pytest.mark.parametrize("row_sum", ["sequential", "reverse"])
def test_forms(exponential: str, kv_order: str, normalize: str, kv_block: int, row_sum: str) -> None:
    names = ("exponential", "kv_order", "normalize", "kv_block", "row_sum")
    check(PLAIN | dict(zip(names, (exponential, kv_order, normalize, kv_block, row_sum), strict=True)))


@pytest.mark.parametrize(("dtype", "probabilities", "output"), list(itertools.product(DTYPES, DTYPES, DTYPES)))
def test_sites(dtype: str, probabilities: str, output: str) -> None:
    check(PLAIN | {"probabilities": probabilities, "output": output}, DTYPES[dtype])


@pytest.mark.parametrize("splits", [2, 3, 5])
@pytest.mark.parametrize("split", DTYPES)
@pytest.mark.parametrize(
    "merge",
    [
        *({"splits_order": order} for order in ("sequential(fma)", "reverse")),
        *({"merge": merge} for merge in ("pairwise", "online", "libm", "libm_fma")),
    ],
    ids=str,
)
@pytest.mark.parametrize("exponential", ["exp2_fma", "exp"])
def test_splits(splits: int, split: str, merge: dict[str, str], exponential: str) -> None:
    """Three tiles: of two splits the second has one, and five splits are three."""
    check(PLAIN | merge | {"splits": splits, "split": split, "exponential": exponential})


UNEVEN: list[dict[str, Any]] = [
    *({"splits": n, "split_by": "seen", "q_block": q} for n in (2, 3) for q in (1, 2, 3, 64)),
    *({"splits": n, "split_by": "keys", "q_block": q, "split_unit": u} for n in (2, 3) for q in (1, 4) for u in (1, 2)),
    *({"splits": "fixed", "split_keys": keys} for keys in (3, 5, 64)),
    *({"splits": "shared", "shared_keys": keys} for keys in (1, 3, 6, 64)),
]


@pytest.mark.parametrize("merge", ["at_once", "pairwise", "online"])
@pytest.mark.parametrize("kv_block", [2, 3])
@pytest.mark.parametrize("choices", UNEVEN, ids=str)
def test_runs_of_unequal_length(choices: dict[str, Any], kv_block: int, merge: str) -> None:
    """Runs that differ between queries, and whose tiles start where the run does."""
    check(PLAIN | choices | {"kv_block": kv_block, "merge": merge, "kv_order": "ascending"})


def test_runs_by_name() -> None:
    """What `runs_of` holds to be each kernel's arithmetic, spelled out for the last of 7 queries."""

    def keys(**choices: Any) -> list[list[list[int]]]:
        return [
            [list(tile) for tile in run] for run in runs_of(6, 7, 7, PLAIN | {"kv_block": 2, "q_block": 1} | choices)
        ]

    assert keys(splits=3) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert keys(splits=3, split_by="keys", split_unit=1) == [[[0, 1], [2]], [[3, 4], [5]], [[6]]]
    assert keys(splits=3, split_by="keys", split_unit=4) == [[[0, 1], [2, 3]], [[4, 5], [6]]]
    assert keys(splits="fixed", split_keys=3) == [[[0, 1], [2]], [[3, 4], [5]], [[6]]]
    assert keys(splits="shared", shared_keys=3) == [[[0, 1], [2]], [[3, 4], [5, 6]]]
    assert runs_of(2, 7, 7, PLAIN | {"kv_block": 2, "splits": "shared", "shared_keys": 3}) == [[range(2), range(2, 3)]]
    assert runs_of(2, 7, 7, PLAIN | {"kv_block": 2, "splits": 2, "split_by": "seen", "q_block": 1}) == [
        [range(2)],
        [range(2, 4)],
    ]


@pytest.mark.parametrize("choices", [{}, {"splits": 2}], ids=str)
@pytest.mark.parametrize("output", DTYPES)
def test_tf32_operands(choices: dict[str, Any], output: str) -> None:
    """q, k and v are a little more than what TF32 makes of them; the probabilities have all their bits."""
    at = PLAIN | choices | {"probabilities": "fp32", "output": output, "tf32": "yes"}
    exact = operands(BLOCK, FP32)
    q, k, v = (x * (1 + 2**-14) for x in exact)
    dtypes_of, mask = at | {site: DTYPES[at[site]] for site in SITES}, torch.ones(2, TOKENS, dtype=torch.bool)
    ours = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=dtypes_of)
    assert_bits(ours, by_hand(*exact, mask, at))
    q, k, v = exact
    without_tf32 = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=dtypes_of | {"tf32": "no"})
    assert not torch.equal(ours, without_tf32)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("window", [None, 2, 4])
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"splits": 2},
        {"splits": 3, "merge": "pairwise"},
        {"splits": 2, "split_by": "seen", "q_block": 2, "merge": "online"},
        {"splits": 2, "split_by": "keys", "q_block": 1, "split_unit": 1},
        {"splits": "fixed", "split_keys": 5, "merge": "online"},
        {"splits": "shared", "shared_keys": 3, "merge": "pairwise"},
    ],
    ids=str,
)
def test_padding_and_window(side: str, window: int | None, choices: dict[str, Any]) -> None:
    places = torch.arange(TOKENS)
    mask = torch.stack([places >= 0, places >= 4 if side == "left" else places < 4])
    ours = check(PLAIN | choices, mask=mask, window=window)
    if side == "left":
        assert not ours[1, :4].any(), "a query without a key gets zeros"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("normalize", ["reciprocal", "divide"])
@pytest.mark.parametrize(
    "choices",
    [
        *({"sink": "end", "exponential": form} for form in ("exp2_fma", "exp2", "exp")),
        *({"sink": "end", "probabilities": "fp32", "output": dtype} for dtype in ("bf16", "fp16")),
        {"sink": "start", "exponential": "exp"},
        {"sink": "start", "exponential": "exp", "kv_order": "ascending", "kv_block": 2},
        {"sink": "start", "exponential": "exp", "splits": 2},
        {"sink": "start", "exponential": "exp", "splits": 3, "merge": "online", "kv_block": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_sinks(choices: dict[str, Any], dtype: torch.dtype, normalize: str, window: int | None, side: str) -> None:
    """FlashAttention 3 of vLLM adds the sink last, its Triton kernels start from it, in the first run (read)."""
    places = torch.arange(TOKENS)
    mask = torch.stack([places >= 0, places >= 4 if side == "left" else places < 4])
    at = PLAIN | choices | {"normalize": normalize}
    ours = check(at, dtype, mask=mask, window=window, sinks=SINKS.to(dtype))
    if side == "left":
        assert not ours[1, :4].any(), "a query without a key gets zeros"


@pytest.mark.parametrize("output", ["bf16", "fp16"])
@pytest.mark.parametrize("exponential", ["exp2_fma", "exp"])
def test_a_sink_that_rescales(exponential: str, output: str) -> None:
    """torchtitan's (read). In 16 bits: of one sigmoid in fp32 the last bit is torch's own."""
    check(PLAIN | {"sink": "rescale", "exponential": exponential, "output": output}, sinks=SINKS.to(BF16))


def test_every_form_has_other_bits() -> None:
    """In data with full mantissas, where the evaluation above cannot follow; `fp32` shows all differences."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 4, 37, WIDTH, generator=generator) for _ in range(2))
    v, mask = torch.randn(1, 37, 4, WIDTH, generator=generator), torch.ones(1, 37, dtype=torch.bool)

    def run(**choices: Any) -> Tensor:
        at = PLAIN | {"kv_block": 8, "probabilities": "fp32"} | choices
        dtypes_of = at | {site: DTYPES[at[site]] for site in SITES}
        # Tensor cores multiply 16-bit numbers.
        step = BF16 if "tensor_core" in str(choices) else FP32
        w = {"sinks": torch.randn(4, generator=torch.Generator().manual_seed(1))} if "sink" in choices else {}
        of_step = (q.to(step), k.to(step), v.transpose(1, 2).to(step))
        return attention(*of_step, mask, w=w, p={"window": None}, at=dtypes_of)

    end, start = {"sink": "end", "exponential": "exp"}, {"sink": "start", "exponential": "exp"}
    two, keys = {"splits": 2}, {"splits": 2, "split_by": "keys", "q_block": 8, "split_unit": 1}
    fixed = {"splits": "fixed", "split_keys": 11}
    shared = {"splits": "shared", "shared_keys": 11}
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"kv_order": "ascending"}),
        ({}, {"kv_block": 11}),
        ({}, {"kv_block": "l2", "l2_bytes": 1 << 12}),
        ({"kv_block": "l2", "l2_bytes": 1 << 12}, {"kv_block": "l2", "l2_bytes": 1 << 15}),
        ({}, {"exponential": "exp2"}),
        ({}, {"exponential": "exp"}),
        ({}, {"exponential": "u20"}),
        ({"exponential": "exp"}, {"exponential": "triton"}),
        ({}, {"exponential": "libm"}),
        ({"exponential": "u20"}, {"exponential": "libm"}),
        ({}, {"scale_on": "query"}),
        ({}, {"scores_order": "reverse"}),
        ({}, {"values_order": "reverse"}),
        (
            {"order": "tensor_core(a100)", "probabilities": "bf16"},
            {"order": "tensor_core(h100)", "probabilities": "bf16"},
        ),
        *(
            (
                {"probabilities": "bf16"} | {name: f"tensor_core({gpu})"},
                {"probabilities": "bf16"} | {name: "tensor_core(h100)"},
            )
            for name, gpu in (("scores_order", "a100"), ("values_order", "a100"))
        ),
        ({}, {"rescale_above": 1}),
        ({}, {"contraction": "sum"}),
        ({}, {"row_sum": "reverse"}),
        ({}, {"normalize": "divide"}),
        ({"normalize": "divide"}, {"normalize": "div_full"}),
        # Two GEMMs of other shapes.
        ({}, {"rows": 1}),
        ({}, {"probabilities": "bf16"}),
        ({}, two),
        (two, two | {"split": "bf16"}),
        (two, two | {"merge": "pairwise"}),
        (two, two | {"merge": "online"}),
        (two | {"merge": "pairwise"}, two | {"merge": "libm"}),
        (two | {"merge": "libm"}, two | {"merge": "libm_fma"}),
        ({"splits": "fixed", "split_keys": 8}, {"splits": "fixed", "split_keys": 8, "normalize": "first"}),
        (two, two | {"splits_order": "sequential"}),
        (two, two | {"split_by": "seen", "q_block": 8}),
        (two, keys),
        (keys, keys | {"q_block": 16}),
        (keys, keys | {"split_unit": 7}),
        (two, fixed),
        (fixed, fixed | {"split_keys": 17}),
        (shared, shared | {"shared_keys": 17}),
        ({}, {"tf32": "yes"}),
        (end, start),
        (end, end | {"sink": "rescale"}),
        (start, start | two),
    ]
    for first, second in pairs:
        assert not torch.equal(run(**first), run(**second)), (first, second)
        assert torch.allclose(run(**first), run(**second), atol=0.02)
    names = {name for first, second in pairs for name in first | second}
    assert {a.name for a in ATTENTION.attributes if "flash" in a.when.get("implementation", ())} <= names


def test_native_row_sum_is_torch_sum() -> None:
    q, k, v = operands(BLOCK)
    mask = torch.ones(2, TOKENS, dtype=torch.bool)
    at = PLAIN | {site: DTYPES[PLAIN[site]] for site in SITES}
    native, written = (
        attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=at | {"row_sum": order})
        for order in ("native", "sequential")
    )
    # torch adds fewer than 16 values in turn.
    assert_bits(native, written)
