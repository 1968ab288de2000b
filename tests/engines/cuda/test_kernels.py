"""vLLM's and FlashInfer's own kernels, through their PTX, against the profiles: every bit."""

from __future__ import annotations

import pytest

from tests.engines.cuda import kernels
from tests.engines.cuda.kernels import BF16, Compared, Rows
from tests.evidence import record

pytestmark = pytest.mark.live

SHAPES = [(2048, 8), (7168, 3), (1024, 260), (2880, 5), (128, 9)]
KERNELS = [
    kernels.flashinfer_rms_norm,
    kernels.flashinfer_add_rms_norm,
    kernels.vllm_rms_norm,
    kernels.vllm_add_rms_norm,
    kernels.vllm_moe_sum,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize(("hidden", "tokens"), SHAPES)
def test_a_profile_has_the_kernels_bits(kernel: object, hidden: int, tokens: int) -> None:
    compared = kernel(Rows.drawn(hidden, tokens))  # type: ignore[operator]
    assert isinstance(compared, Compared)
    assert compared.numbers >= hidden * tokens
    assert compared.differ == 0
    written_down(compared)


def written_down(compared: Compared) -> None:
    """As evidence, that what it verifies has this kernel's bits."""
    assert compared.differ == 0
    assert compared.verifies
    against = f"{compared.version} {compared.kernel.partition(' ')[2]}"
    for op, values in compared.verifies.items():
        record(op, values, against, operands=BF16, how="ptx", compiled=compared.compiled)


def test_a_row_that_no_vector_divides_takes_the_kernel_of_single_elements() -> None:
    rows = Rows.drawn(1001, 4)
    assert kernels.vllm_rms_norm(rows).differ == 0
    assert kernels.vllm_add_rms_norm(rows).differ == 0


def test_another_order_of_additions_is_seen() -> None:
    """Few numbers of bf16 show it, but some do."""
    rows = Rows.drawn(7168, 64)
    assert (kernels.vllm_rms_norm(rows).control or 0) > 0
    assert (kernels.vllm_moe_sum(rows).control or 0) > 0


def test_the_gate_of_vllm_takes_cudas_exponential_not_torchs() -> None:
    ids, torchs, _, cudas = kernels.topk_compared(256)
    assert ids.differ == 0
    assert cudas.differ == 0
    assert torchs.differ > 0
    assert torchs.ulp <= 4
    assert ids.assumed == ("ex2.approx.f32",)
