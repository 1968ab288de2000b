"""Hardware other than NVIDIA's GPUs, as images, devices of containers and environment variables tell it.

read: images of vLLM 0.33.0 (docs/getting_started/installation, docker/Dockerfile.*) and SGLang 0.5.23 (docker/), and
the variables of vllm/envs.py, srt/environ.py, HIP, CANN and Habana.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from moeparity.errors import Where
from moeparity.profiles.launch.reading.shell_words import plain
from moeparity.profiles.launch.source import Entry, Hardware

CPUS = "CPUs"
_IN_IMAGE = {
    "rocm|aiter": "AMD GPUs",
    "tpu": "TPUs",
    "xpu": "Intel GPUs",
    "hpu|gaudi": "Gaudi accelerators",
    "npu|ascend|cann": "Ascend NPUs",
    "neuron": "AWS Neuron",
    "cpu": CPUS,
}
"""Parts of an image's name or tag, between letters of another kind."""
_DEVICES = {"/dev/kfd": "AMD GPUs", "/dev/davinci": "Ascend NPUs", "/dev/neuron": "AWS Neuron"}
_VARIABLES = {
    r"(VLLM|SGLANG)_ROCM_\w+|(HIP|ROCR)_VISIBLE_DEVICES|(VLLM|SGLANG)_USE_AITER|PYTORCH_ROCM_ARCH": "AMD GPUs",
    r"ASCEND_RT_VISIBLE_DEVICES|ASCEND_VISIBLE_DEVICES": "Ascend NPUs",
    r"HABANA_VISIBLE_(DEVICES|MODULES)": "Gaudi accelerators",
    r"VLLM_CPU_\w+|SGLANG_USE_CPU_ENGINE": CPUS,
}


def of_image(image: str, where: Where) -> Iterator[Hardware]:
    """What an image is built for, by its name and tag: `vllm/vllm-openai-rocm`, `lmsysorg/sglang:v0.5.9-rocm700`."""
    for part, device in _IN_IMAGE.items():
        if re.search(rf"(?<![a-z])({part})(?![a-z])", plain(image).lower()):
            yield Hardware(says=f"image {plain(image)}", where=where, device=device)


def of_device(path: str, where: Where) -> Iterator[Hardware]:
    """What `docker run --device PATH` hands to a container."""
    for beginning, device in _DEVICES.items():
        if path.startswith(beginning):
            yield Hardware(says=f"--device {path}", where=where, device=device)


def of_environment(entries: Iterable[Entry]) -> Iterator[Hardware]:
    """What the variables say that reach a program; of an empty one nothing."""
    for entry in entries:
        for pattern, device in _VARIABLES.items():
            if re.fullmatch(pattern, entry.name) and str(entry.value):
                yield Hardware(says=f"{entry.name} {entry.value}", where=entry.where, device=device)
