"""cuBLASLt's plan for a GEMM, as nine integers that its heuristic gives; asked by ctypes, nothing is computed."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from moeparity.errors import MoeparityError, listed
from moeparity.numerics.tensor_core.gemm_plans import FIELDS
from moeparity.numerics.tensor_core.instructions import ARCHITECTURES
from moeparity.numerics.tensor_core.planned_order import Shape

_COMPUTE_32F = 68
_DTYPES: Final = {"fp32": 0, "fp16": 2, "bf16": 14}
"""cudaDataType_t."""
_TRANSA, _OP_T = 3, 1
_MAX_WORKSPACE = 1
_SHORT = {"inner_shape_id", "cluster_shape_id"}
"""Attributes of 16 bits; the others have 32."""


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
    """The libcublasLt that torch loaded, and the GPU that it plans for.

    Raises MoeparityError where there is no GPU, no such library, or an answer with an error's status.
    """

    def __init__(self) -> None:
        import torch

        if torch.version.cuda is None or not torch.cuda.is_available():
            raise MoeparityError(
                f"cuBLASLt plans for the GPU at hand, and torch {torch.__version__} finds none here. Ask on the "
                "machine that serves or trains."
            )
        name = f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}"
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise MoeparityError(f"{name} of torch {torch.__version__} cannot be loaded: {error}.") from None
        self.device = torch.cuda.get_device_name()
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
            raise MoeparityError(f"{name} of cuBLASLt {self.version} on {self.device}: status {status}.")

    def _layout(self, dtype: str, rows: int, columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), _DTYPES[dtype], *sizes)
        return layout

    def plan(
        self, m: int, k: int, n: int, workspace: int, *, inputs: str = "bf16", output: str = "bf16"
    ) -> dict[str, int]:
        """For `x [m, k] @ weight [n, k].T` added up in fp32, with this many bytes of workspace at most: `FIELDS`, and
        the `workspace` that it takes.
        """
        operation, preference = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_32F, _DTYPES["fp32"])
        transposed = ctypes.c_int32(_OP_T)
        self._call("cublasLtMatmulDescSetAttribute", operation, _TRANSA, ctypes.byref(transposed), ctypes.c_size_t(4))
        weight, x, y = self._layout(inputs, k, n), self._layout(inputs, k, m), self._layout(output, n, m)
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
        plan = {"workspace": heuristic.workspace} | {name: self._attribute(heuristic, name) for name in FIELDS}
        for layout in (weight, x, y):
            self._call("cublasLtMatrixLayoutDestroy", layout)
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        self._call("cublasLtMatmulDescDestroy", operation)
        return plan

    def _attribute(self, heuristic: _Heuristic, name: str) -> int:
        """One of cublasLtMatmulAlgoConfigAttributes_t, whose numbers are the places in `FIELDS`."""
        value, written = (ctypes.c_uint16 if name in _SHORT else ctypes.c_int32)(), ctypes.c_size_t()
        self._call(
            "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(heuristic.algo), FIELDS.index(name),
            ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written),
        )  # fmt: skip
        return value.value


def gpu_of(device: str) -> str:
    """The short name of a GPU, such as `NVIDIA H100 80GB HBM3`. Raises MoeparityError if its arithmetic is unknown."""
    words = re.split(r"[^a-z0-9]+", device.lower())
    names = [name for name in ARCHITECTURES if set(name.split("_")) <= set(words)]
    if not names:
        raise MoeparityError(f"{device} is no GPU whose arithmetic is known here, as it is of {listed(ARCHITECTURES)}.")
    return names[0]


def in_runs(plans: Sequence[Sequence[int]]) -> Iterator[str]:
    """Plans of 1, 2, 3, .. rows as lines of a file, neighbours that are alike as one: `1-16: 66 393 3 2 0 0 35 0 5`."""
    first = 1
    for rows, plan in enumerate(plans, 1):
        if rows == len(plans) or plans[rows] != plan:
            yield f"{first if first == rows else f'{first}-{rows}'}: {' '.join(map(str, plan))}"
            first = rows + 1


def plans_file(library: Library, shapes: Sequence[Shape], rows: int, workspace: int) -> str:
    """The file of plans (`plan.spec.gemm_plans_schema`) of some shapes, for 1 to `rows` rows."""
    major, minor, patch = library.version // 10_000, library.version // 100 % 100, library.version % 100
    lines = [
        "kind: plans",
        f"gpu: {gpu_of(library.device)}",
        f"device: {json.dumps(library.device)}",
        f"library: {major}.{minor}.{patch}",
        f"workspace: {workspace}",
        "gemms:",
    ]
    for n, k, inputs, output in shapes:
        answers = (library.plan(m, k, n, workspace, inputs=inputs, output=output) for m in range(1, rows + 1))
        runs = in_runs([[answer[name] for name in FIELDS] for answer in answers])
        lines += [f"- {{n: {n}, k: {k}, inputs: {inputs}, output: {output}, plans: ["]
        lines += [*(f'  "{run}",' for run in runs), "]}"]
    return "\n".join(lines) + "\n"
