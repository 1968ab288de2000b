"""SGLang's stores into its cache and its gate of few rows, through their PTX, against nodes: every bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moeparity.numerics.bits import int_view
from moeparity.numerics.gemm import gemm
from tests.engines.cuda import sglang_caches, sglang_gemms
from tests.engines.cuda.compared import BF16, Compared
from tests.verified import record

pytestmark = pytest.mark.live
PARTS = 4
"""Of K, where few rows are projected to latents."""
COMPARISONS: dict[str, list[Callable[[], Compared]]] = {
    "SGLang 0.5.23 store_kvcache_kernel, set_mla_kv_buffer_kernel": [
        lambda: sglang_caches.head_store(9), lambda: sglang_caches.latent_store(9),
    ],
    "SGLang 0.5.23 tiny_n_gemm_kernel": [lambda rows=rows: sglang_gemms.tiny_gate(rows) for rows in sglang_gemms.ROWS],  # type: ignore[misc]
}  # fmt: skip


@pytest.mark.parametrize("against", COMPARISONS)
def test_a_node_has_the_kernels_bits(against: str) -> None:
    for comparison in COMPARISONS[against]:
        compared = comparison()
        assert compared.differ == 0
        (claimed,) = compared.verified.items()
        record(*claimed, against, operands=BF16, how="ptx", compiled=compared.compiled)


def test_the_gate_shows_its_operands_and_its_order() -> None:
    """Left to right nearly every number is another one."""
    compared = sglang_gemms.tiny_gate(3)
    assert compared.verified["gate"].keys() == {"inputs", "output", "order"}
    assert (compared.control or 0) > 0.8 * compared.numbers


def test_what_is_stored_is_told_from_other_dtypes() -> None:
    for compared in (sglang_caches.head_store(9), sglang_caches.latent_store(9)):
        assert compared.verified == {"kv_cache": {"stored": "unrounded"}}


def test_latents_of_few_rows_are_four_parts_of_k() -> None:
    """As cuBLASLt would split K in four, with its sums in fp32; no other number of parts gives these bits."""
    x, weight, theirs = sglang_gemms.projected(5)
    for splits, differ in ((1, 0.1), (2, 0.05), (3, 0.05), (4, 0), (8, 0.05)):
        ours = gemm(x, weight, None, inputs=BF16, output=BF16, order="tensor_core(h100)", splits=splits)
        others = int((int_view(ours) != int_view(theirs)).sum())
        assert others == 0 if splits == PARTS else others > differ * theirs.numel(), splits
