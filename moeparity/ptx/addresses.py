"""Where everything of a kernel lies: slots of its registers, addresses of its parameters and variables."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeparity.ptx.formats import TYPES
from moeparity.ptx.spaces import Buffers, zeros
from moeparity.ptx.syntax import Kernel, Name, PtxError, Scope, Variable
from moeparity.ptx.table import UnknownInstruction

_DYNAMIC_ALIGN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A kernel with an address for every name: `scoped` ones stand inside braces, `addresses` are known everywhere."""

    kernel: Kernel
    slots: Mapping[tuple[Scope, str], int]
    types: tuple[str, ...]
    addresses: Mapping[str, int]
    scoped: Mapping[tuple[Scope, str], int]
    parameters: tuple[int, ...]
    parameter_bytes: int
    shared_bytes: int
    """Static shared memory; dynamic shared memory begins behind it."""
    local_bytes: int
    globals_used: tuple[str, ...]
    """Names of the `.global` variables that it uses."""


class Globals:
    """Variables outside of kernels, `.global` and `.const`: they keep what a launch wrote for the next one."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        static = [variable for variable in variables.values() if variable.space in {"global", "const"}]
        self._arrays = {variable.name: zeros(max(variable.size, 1)) for variable in static}
        self.addresses = dict(zip(self._arrays, self._placed(Buffers()), strict=True))
        for variable in static:
            octets = _initial(variable, self.addresses)
            self._arrays[variable.name][: octets.size] = octets

    def place(self, buffers: Buffers) -> None:
        """Puts them first into a launch's global memory, where `addresses` says."""
        assert self._placed(buffers) == list(self.addresses.values())

    def _placed(self, buffers: Buffers) -> list[int]:
        return [buffers.place(array) for array in self._arrays.values()]


def layout_of(kernel: Kernel, module: Mapping[str, Variable], addresses: Mapping[str, int]) -> Layout:
    """The layout of a kernel in a module with those variables, of which the global ones have these addresses."""
    keys = list(kernel.registers)
    offsets, parameter_bytes = offsets_of([(parameter.size, parameter.align) for parameter in kernel.parameters])
    parameter_bytes = -(-parameter_bytes // _DYNAMIC_ALIGN) * _DYNAMIC_ALIGN
    used = {part.text for part in _names(kernel)}
    outer = [variable for name, variable in module.items() if variable.space == "shared" and name in used]
    inner = [(key, variable) for key, variable in kernel.variables.items() if variable.space == "shared"]
    static = [variable for variable in (*outer, *(variable for _, variable in inner)) if variable.size]
    starts, shared_bytes = offsets_of([(variable.size, variable.align) for variable in static])
    shared_bytes = -(-shared_bytes // _DYNAMIC_ALIGN) * _DYNAMIC_ALIGN
    # Variables without a size are the dynamic part, all of them the same.
    shared = {variable.name: start for variable, start in zip(static, starts, strict=True)}
    # Arguments of calls, which nobody receives: a thread that reaches a call is an error.
    passed = [(key, variable) for key, variable in kernel.variables.items() if variable.space == "param"]
    passed_starts, passed_bytes = offsets_of([(variable.size, variable.align) for _, variable in passed])
    local = [(key, variable) for key, variable in kernel.variables.items() if variable.space == "local"]
    local_starts, local_bytes = offsets_of([(variable.size, variable.align) for _, variable in local])
    return Layout(
        kernel=kernel,
        slots={key: at for at, key in enumerate(keys)},
        types=tuple(_register(kernel.registers[key], kernel) for key in keys),
        addresses={
            **addresses,
            **{parameter.name: at for parameter, at in zip(kernel.parameters, offsets, strict=True)},
            **{variable.name: shared.get(variable.name, shared_bytes) for variable in outer},
        },
        scoped={
            **{key: shared.get(variable.name, shared_bytes) for key, variable in inner},
            **{key: start for (key, _), start in zip(local, local_starts, strict=True)},
            **{key: parameter_bytes + start for (key, _), start in zip(passed, passed_starts, strict=True)},
        },
        parameters=tuple(offsets),
        parameter_bytes=parameter_bytes + passed_bytes,
        shared_bytes=shared_bytes,
        local_bytes=local_bytes,
        globals_used=tuple(sorted(name for name, v in module.items() if v.space == "global" and name in used)),
    )


def offsets_of(sizes: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Offsets of things given as (size, alignment), one behind the other, and the bytes of all."""
    offsets, end = [], 0
    for size, align in sizes:
        end = -(-end // align) * align
        offsets.append(end)
        end += size
    return offsets, end


def _register(type_: str, kernel: Kernel) -> str:
    if type_ not in TYPES:
        raise UnknownInstruction(f"Kernel {kernel.name}: registers of type `.{type_}` are not known.")
    return type_


def _names(kernel: Kernel) -> list[Name]:
    parts: list[object] = []
    for statement in kernel.statements:
        for operand in statement.operands:
            parts.extend((getattr(operand, "base", operand), *getattr(operand, "parts", ())))
    return [part for part in parts if isinstance(part, Name)]


def _initial(variable: Variable, addresses: Mapping[str, int]) -> npt.NDArray[np.uint8]:
    """The bytes of a variable's initialiser; what it leaves out is 0."""
    if not variable.initial:
        return np.zeros(0, np.uint8)
    size = np.dtype(TYPES[variable.type]).itemsize
    octets = b""
    for value in variable.initial:
        if isinstance(value, str):
            if value not in addresses:
                raise PtxError(f"The variable `{variable.name}` holds the address of `{value}`, which is not known.")
            octets += struct.pack("<Q", addresses[value])[:size]
        else:
            octets += (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return np.frombuffer(octets, np.uint8)
