"""cuBLASLt's plan for a GEMM, as nine integers that its heuristic gives; asked by ctypes, nothing is computed."""

from __future__ import annotations

import ctypes
from typing import Any

_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_TRANSA, _OP_T = 3, 1
_MAX_WORKSPACE = 1
ATTRIBUTES = {
    "algo_id": (0, ctypes.c_int32),
    "tile_id": (1, ctypes.c_uint32),
    "split_k": (2, ctypes.c_int32),
    "reduction_scheme": (3, ctypes.c_uint32),
    "cta_swizzling": (4, ctypes.c_uint32),
    "custom_option": (5, ctypes.c_uint32),
    "stages_id": (6, ctypes.c_uint32),
    "inner_shape_id": (7, ctypes.c_uint16),
    "cluster_shape_id": (8, ctypes.c_uint16),
}
"""cublasLtMatmulAlgoConfigAttributes_t: number and type of each."""


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Library:
    """The libcublasLt that torch loaded; calls raise RuntimeError with the status."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - it loads the library

        self._library = ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '13').partition('.')[0]}")
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p()
        self._call("cublasLtCreate", ctypes.byref(self._handle))

    @property
    def version(self) -> int:
        """As the library tells it, such as 130100."""
        return int(self._library.cublasLtGetVersion())

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def _layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _R_16BF, *sizes)
        return layout

    def plan(self, m: int, k: int, n: int, workspace: int) -> dict[str, int]:
        """For `x [m, k] @ weight [n, k].T` in bf16 added up in fp32, with so many bytes of workspace at most."""
        operation, preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_32F, _R_32F)
        transposed = ctypes.c_int32(_OP_T)
        self._call("cublasLtMatmulDescSetAttribute", operation, _TRANSA, ctypes.byref(transposed), ctypes.c_size_t(4))
        weight, x, y = self._layout(k, n), self._layout(k, m), self._layout(n, m)
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        most = ctypes.c_size_t(workspace)
        self._call(
            "cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE, ctypes.byref(most), ctypes.c_size_t(8)
        )
        heuristic, count = _Heuristic(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, operation, weight, x, y, y, preference, 1,
            ctypes.byref(heuristic), ctypes.byref(count),
        )  # fmt: skip
        plan = {"workspace": heuristic.workspace}
        for name, (number, kind) in ATTRIBUTES.items():
            value, written = kind(), ctypes.c_size_t()
            self._call(
                "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(heuristic.algo), number, ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(kind)), ctypes.byref(written),
            )  # fmt: skip
            plan[name] = value.value
        return plan
