"""Faults planted in engines' own kernels are found: an order, a contraction, a barrier, a wait, a tail."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest

from moeparity import ptx
from tests.engines.cuda import activations, collectives, norms, ropes, toolchain
from tests.engines.cuda.compared import Compared
from tests.engines.cuda.norms import Rows

pytestmark = pytest.mark.live
SEEDS = range(4)


def planted(
    text: str, kernel: str, pattern: str, put: str | Callable[[re.Match[str]], str], *, count: int = 1
) -> ptx.Module:
    """The module with something else in the place of the first matches in one kernel."""
    name = ptx.load(text).full_name(kernel)
    head, entry, rest = text.partition(f".entry {name}(")
    body, end, tail = rest.partition("\n}")
    changed, times = re.subn(pattern, put, body, count=count)
    assert times == count, f"{times} places in {name}"
    return ptx.load(head + entry + changed + end + tail)


def with_fault(monkeypatch: pytest.MonkeyPatch, of: ModuleType, engine: str, module: ptx.Module) -> None:
    monkeypatch.setattr(of, engine, lambda: module)


def outcomes(compared: Callable[[int], Compared], seeds: range = SEEDS) -> set[tuple[int, int]]:
    """How many numbers differ, and how far, under each seed."""
    runs = [compared(seed) for seed in seeds]
    return {(run.differ, run.ulp) for run in runs}


def test_two_ranks_that_change_places_in_the_sum() -> None:
    text, kernel = toolchain.vllm("custom_all_reduce.cu"), "cross_device_reduce_1stageI13__nv_bfloat16Li4E"
    module = planted(text, kernel, r"\{(%rd\d+), (%rd\d+)\}, (\[%rd\d+\+16\])", r"{\2, \1}, \3")
    assert collectives.vllm_all_reduce(4, 3, 2048, 1).differ == 0
    assert collectives.vllm_all_reduce(4, 3, 2048, 1, module=module).differ > 0


def test_a_butterfly_that_begins_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = toolchain.flashinfer("flashinfer/norm.cuh", norms._NORMS)
    distances = iter(["1", "2", "4", "8", "16"])
    module = planted(
        text,
        "13RMSNormKernel",
        r"(shfl\.sync\.bfly\.b32 \t?%\w+, %\w+, )%r\d+",
        lambda m: m[1] + next(distances),
        count=5,
    )
    rows = Rows.drawn(7168, 400)
    with_fault(monkeypatch, norms, "flashinfer", module)
    assert norms.flashinfer_rms_norm(rows).differ > 0


@pytest.mark.parametrize("how", ["nvcc", "ptxas"])
def test_a_kernel_without_contraction(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    flags = ("-fmad=false",) if how == "nvcc" else ()
    text = toolchain.flashinfer("flashinfer/pos_enc.cuh", ropes._ROPE, *flags)
    with_fault(monkeypatch, ropes, "flashinfer", ptx.load(text, contract=how == "nvcc"))
    assert ropes.flashinfer_rotary(9, (8, 2), pairs=True).differ > 0


def test_a_barrier_left_out_of_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one, between the thread that writes the root and those that read it."""
    text, kernel = toolchain.vllm("layernorm_kernels.cu"), "rms_norm_kernelIN3c108BFloat16ELi8ELi2ELb1"
    barriers = text.partition(f".entry {ptx.load(text).full_name(kernel)}(")[2].partition("\n}")[0].count("bar.sync")
    barrier = iter(range(barriers))
    module = planted(
        text, kernel, r"bar\.sync[ \t]+0;", lambda m: "" if next(barrier) == barriers - 1 else m[0], count=barriers
    )
    rows = Rows.drawn(1024, 2)

    def run(seed: int) -> Compared:
        with monkeypatch.context() as patch:
            launch = module.launch
            patch.setattr(module, "launch", lambda *args, **more: launch(*args, **more, seed=seed))
            patch.setattr(norms, "vllm", lambda: module)
            return norms.vllm_rms_norm(rows)

    assert len(outcomes(run)) > 1
    assert norms.vllm_rms_norm(rows).differ == 0


def test_a_rank_that_does_not_wait_for_the_others() -> None:
    """Between the two stages of vLLM's all-reduce."""
    text, kernel = toolchain.vllm("custom_all_reduce.cu"), "cross_device_reduce_2stageI13__nv_bfloat16Li4E"
    module = planted(text, kernel, r"(ld\.acquire\.sys[\s\S]*?)@%p\d+ bra[ \t]+\S+;", lambda m: m[1])
    assert outcomes(lambda seed: collectives.vllm_all_reduce(4, 1, 1024, 2, seed=seed), range(1)) == {(0, 0)}
    assert len(outcomes(lambda seed: collectives.vllm_all_reduce(4, 1, 1024, 2, seed=seed, module=module))) > 1


def test_a_cluster_that_does_not_wait_for_its_blocks() -> None:
    """Before the sums of squares of the other blocks are read."""
    instances = collectives.instances()
    text = toolchain.flashinfer(*instances)
    kernel = collectives.Fused(ranks=2, tokens=1, hidden=2048, norm=True).mangled
    module = planted(text, kernel, r"barrier\.cluster\.(arrive|wait)[^;]*;", "", count=2)
    run = collectives.flashinfer_all_reduce
    assert outcomes(lambda seed: run(2, 1, 2048, norm=True, seed=seed), range(1)) == {(0, 0)}
    assert len(outcomes(lambda seed: run(2, 1, 2048, norm=True, seed=seed, module=module))) > 1


def test_a_row_whose_last_number_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _tail(r"{ .reg .b64 %less; sub.s64 %less, \2, 1; setp.lt.s64 \1, %less; }")
    with_fault(monkeypatch, activations, "vllm", module)
    assert activations.vllm_silu_and_mul(5, 1100).differ == 5


def test_a_row_that_runs_over_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with_fault(monkeypatch, activations, "vllm", _tail(r"setp.le.s64 \1, \2;"))
    with pytest.raises(ptx.PtxError, match=r"global address 0x.* is outside of what there is"):
        activations.vllm_silu_and_mul(5, 1100)


def _tail(put: str) -> ptx.Module:
    """The kernel of single elements with another end of its loop."""
    kernel = "act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162 silu_kernelIS2_ packed_silu_kernel Lb1ELb0ELb0ELb0E"
    return planted(
        toolchain.vllm("activation_kernels.cu"), kernel, r"setp\.lt\.s64[ \t]+(%p\d+, %rd\d+), (%rd\d+);", put
    )
