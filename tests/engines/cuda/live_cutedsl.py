"""The PTX that CuTe-DSL makes of FlashInfer's norms, with how they are launched; in a process of its own, on no GPU.

`python -m tests.engines.cuda.live_cutedsl PACKAGE KIND HIDDEN FOLDER` leaves `kernel.ptx` and `launch.json` in the
folder; PACKAGE is the folder of tests/engines/live.py that holds this version of FlashInfer. Its norms' files are
imported by themselves; the device answers as an H100.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.engines.live import FOLDER

_KINDS = {
    "rmsnorm": ("_get_compiled_rmsnorm_kernel", "RMSNormKernel"),
    "fused_add_rmsnorm": ("_get_compiled_fused_add_rmsnorm_kernel", "FusedAddRMSNormKernel"),
}


def main(package: str, kind: str, hidden: int, folder: Path) -> None:
    """Compiles one kernel for contiguous rows in bf16."""
    os.environ |= {
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_KEEP_PTX": "1",
        "CUTE_DSL_DUMP_DIR": str(folder),
        "CUTE_DSL_NO_CACHE": "1",
    }
    for name in ("flashinfer", "flashinfer.norm", "flashinfer.norm.kernels", "flashinfer.cute_dsl"):
        empty = ModuleType(name)
        empty.__path__ = [str(FOLDER.joinpath(package, *name.split(".")))]
        sys.modules[name] = empty
    h100 = SimpleNamespace(major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=232448)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: h100  # type: ignore[assignment]
    module = import_module(f"flashinfer.norm.kernels.{kind}")
    compiled, form = _KINDS[kind]
    kernel: Any = getattr(module, form)(module.get_cutlass_dtype("bfloat16"), hidden, 0.0, sm_version=90)
    getattr(module, compiled)("bfloat16", hidden, 0.0, False, 90, True)
    (ptx_file,) = folder.glob("*.ptx")
    ptx_file.rename(folder / "kernel.ptx")
    launch = {
        "rows": kernel.rows_per_block,
        "threads": kernel.num_threads,
        "cluster": kernel.cluster_n,
        "shared": kernel._smem_size_in_bytes(),
    }
    (folder / "launch.json").write_text(json.dumps(launch))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
