"""What torch's Inductor writes for an H100, in Triton, run as PTX: no GPU, no driver.

A function is exported, put on a GPU that is not there (fake tensors, a device that answers as one H100), decomposed and
lowered by Inductor; the kernels that it wrote are compiled by Triton as Inductor's own launcher asks, and the program
around them runs with tensors on the CPU. Where Inductor would time several launches of a kernel, every one is run.
"""

from __future__ import annotations

import os

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.engines.triton_kernels import compiled  # isort: skip
import torch
import triton
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import _recursive_post_grad_passes
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import GridExpr
from torch._inductor.virtualized import V
from torch.export import Dim
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.compiler import ASTSource

_H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 << 30,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20,
)
_ANSWERS: dict[str, Any] = {
    "is_available": lambda: True,
    "current_device": lambda: 0,
    "device_count": lambda: 1,
    "get_compute_capability": lambda _=None: 90,
    "get_device_properties": lambda _=None: _H100,
    "get_device_capability": lambda _=None: (9, 0),
    "is_bf16_supported": lambda *_, **__: True,
    "is_triton_capable": lambda _=None: True,
    "raise_if_triton_unavailable": lambda _=None: None,
    "synchronize": lambda _=None: None,
    "_lazy_init": lambda: None,
}


@contextmanager
def _h100() -> Iterator[None]:
    """torch's CUDA answers as one H100."""
    with ExitStack() as stack:
        for place in (torch.cuda, CudaInterface, CudaInterface.Worker):
            for name, answer in _ANSWERS.items():
                attribute = answer if place is torch.cuda else staticmethod(answer)
                stack.enter_context(patch.object(place, name, attribute, create=True))
        for name in ("has_triton", "has_triton_package"):
            stack.enter_context(patch(f"torch.utils._triton.{name}", lambda *_: True))
        stack.enter_context(patch.object(torch.version, "cuda", "13.0"))
        for name in ("_cuda_getDevice", "_cuda_getCurrentRawStream"):
            stack.enter_context(patch.object(torch._C, name, lambda *_: 0, create=True))
        stack.enter_context(config.patch(fx_graph_cache=False, compile_threads=1))
        yield


def source(function: Callable[..., Any], *inputs: Tensor, rows: tuple[int, ...]) -> str:
    """Inductor's program for a function; the first dimension of those of the tensors in `rows` is not fixed."""

    class Whole(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return function(*args)

    count = Dim("rows", min=2, max=1 << 14)
    shapes = (tuple({0: count} if i in rows else None for i in range(len(inputs))),)
    with torch.no_grad():
        exported = torch.export.export(Whole(), inputs, dynamic_shapes=shapes)
        module = exported.run_decompositions(select_decomp_table()).graph_module
    # They say cpu, where it was exported.
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        module.graph.erase_node(node)
    module.recompile()
    with _h100(), torch.no_grad():
        fakes = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
        mode = fakes[0].fake_mode
        with mode:
            fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in fakes]
        FakeTensorProp(module, mode).propagate(*fakes)
        with V.set_fake_mode(mode):
            _recursive_post_grad_passes(module, is_inference=True)
        graph = GraphLowering(module, example_inputs=fakes, shape_env=mode.shape_env, is_inference=True)
        with V.set_graph_handler(graph), V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
            graph.run(*fakes)
            code, _ = graph.codegen()
    return str(code.value)


def run(program: str, *inputs: Tensor) -> Iterator[list[Tensor]]:
    """The outputs of the program, for every launch that Inductor would try of its kernels."""
    launches = 1
    attempt = 0
    while attempt < launches:
        kernels: list[_Kernel] = []
        outputs = _outputs(program, inputs, kernels, attempt)
        launches = max(len(kernel.tuner.configs) for kernel in kernels)
        attempt += 1
        yield outputs


def _outputs(program: str, inputs: tuple[Tensor, ...], kernels: list[_Kernel], attempt: int) -> list[Tensor]:
    on_cpu = program.replace("with torch.cuda._DeviceGuard(0):", "with nullcontext():")
    on_cpu = on_cpu.replace("torch.cuda.set_device(0)", "pass").replace("empty_strided_cuda(", "empty_strided_cpu(")
    on_cpu = on_cpu.replace("raw_stream0 = get_raw_stream(0)", "raw_stream0 = 0")
    on_cpu = on_cpu.replace("async_compile = AsyncCompile()", "async_compile = kernels")

    def loaded(name: str, text: str, **_: Any) -> _Kernel:
        kernels.append(_Kernel(name, text, attempt))
        return kernels[-1]

    namespace: dict[str, Any] = {
        "__name__": "by_inductor",
        "nullcontext": nullcontext,
        "kernels": SimpleNamespace(triton=loaded, wait=lambda _: None),
    }
    with _h100():
        exec(compile(on_cpu, "by_inductor", "exec"), namespace)  # noqa: S102 (what Inductor wrote)
    return list(namespace["call"]([tensor.clone() for tensor in inputs]))


class _Kernel:
    """One of Inductor's kernels with its launcher, of whose launches the one of that number is taken."""

    def __init__(self, name: str, text: str, attempt: int) -> None:
        with patch.object(triton_helpers, "set_driver_to_gpu", lambda: None), _h100():
            self.tuner = getattr(PyCodeCache.load(text), name)
        self.choice = self.tuner.configs[attempt % len(self.tuner.configs)]

    def run(self, *args: Any, stream: int) -> None:
        """As Inductor's CachingAutotuner compiles and launches it."""
        assert stream == 0
        meta, choice = self.tuner.triton_meta, self.choice
        constants = {**meta["constants"], **{k: v for k, v in choice.kwargs.items() if k in meta["signature"]}}
        kernel = triton.compile(
            ASTSource(self.tuner.fn, meta["signature"], constants, meta["configs"][0]),
            target=compiled.target,
            options={"num_warps": choice.num_warps, "num_stages": choice.num_stages},
        )
        names = [name for name, kind in meta["signature"].items() if kind != "constexpr"]
        grid = GridExpr.from_meta(self.tuner.inductor_meta, choice)
        values = dict(zip(names, args, strict=True))
        x, y, z = grid.eval_slow({**values, **choice.kwargs})
        compiled.launched(kernel, (x, y, z), [values[name] for name in names])


def outputs(function: Callable[..., Any], *inputs: Tensor, rows: tuple[int, ...] = (0,)) -> list[list[Tensor]]:
    """Of each launch that Inductor would try the function's outputs."""
    return list(run(source(function, *inputs, rows=rows), *inputs))
