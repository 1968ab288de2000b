"""CUDA's driver by ctypes: machine code is loaded and a kernel launched, with parameters as bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

_MOST_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_WIDE_CLUSTERS = 12
"""CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""
_CLUSTER = 4
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION."""
_PLAIN_SHARED = 48 * 1024
"""Bytes of shared memory that a kernel may ask for unannounced."""

Extent = tuple[int, int, int]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: what it is of, and a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class Driver:
    """The driver's library in the context that torch made; each call raises RuntimeError with the driver's words."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._library = ctypes.CDLL("libcuda.so.1")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'error').decode()} ({code})")

    def module(self, cubin: bytes) -> ctypes.c_void_p:
        """Machine code, loaded."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        return module

    def function(self, module: ctypes.c_void_p, name: str, shared: int, cluster: Extent) -> ctypes.c_void_p:
        """A kernel of it, allowed so many bytes of dynamic shared memory and such clusters."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > _PLAIN_SHARED:
            self._call("cuFuncSetAttribute", function, _MOST_SHARED, shared)
        if cluster[0] * cluster[1] * cluster[2] > 8:
            self._call("cuFuncSetAttribute", function, _WIDE_CLUSTERS, 1)
        return function

    def launch(
        self,
        function: ctypes.c_void_p,
        parameters: bytes,
        *,
        grid: Extent,
        block: Extent,
        cluster: Extent,
        shared: int,
        stream: torch.cuda.Stream,
    ) -> None:
        """Put a launch into a stream; parameters are the bytes of the kernel's parameter space."""
        attribute = _Attribute(id=_CLUSTER)
        attribute.value[:3] = cluster
        alone = cluster == (1, 1, 1)
        config = _Config(
            grid=(ctypes.c_uint * 3)(*grid),
            block=(ctypes.c_uint * 3)(*block),
            shared=shared,
            stream=stream.cuda_stream,
            attributes=ctypes.pointer(attribute),
            count=0 if alone else 1,
        )
        octets, size = ctypes.create_string_buffer(parameters, len(parameters)), ctypes.c_size_t(len(parameters))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END.
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(octets), 2, ctypes.addressof(size), 0)
        self._call("cuLaunchKernelEx", ctypes.byref(config), function, None, extra)


class Memory:
    """Arrays placed on the device, each once, as `moeparity.ptx` places them in its own memory."""

    def __init__(self) -> None:
        self._placed: dict[tuple[int, int], tuple[Any, torch.Tensor]] = {}

    def place(self, octets: Any) -> int:
        """The device's address of a copy of an array of bytes."""
        key = octets.ctypes.data, octets.size
        if key not in self._placed:
            # Room behind it, so that an index that runs over by a vector meets nothing of another array.
            there = torch.zeros(octets.size + 512, dtype=torch.uint8, device="cuda")
            there[: octets.size].copy_(torch.from_numpy(octets))
            self._placed[key] = octets, there
        return self._placed[key][1].data_ptr()

    def fetch(self) -> None:
        """Write what is on the device into the arrays."""
        torch.cuda.synchronize()
        for octets, there in self._placed.values():
            octets[:] = there[: octets.size].cpu().numpy()


def streams(count: int) -> Sequence[torch.cuda.Stream]:
    """So many streams that run side by side."""
    return [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]
