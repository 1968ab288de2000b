"""Arguments of a launch, and the bytes of a kernel's parameters that they become."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from moeparity.errors import listed
from moeparity.ptx.addresses import Layout
from moeparity.ptx.formats import dtype_of
from moeparity.ptx.spaces import zeros
from moeparity.ptx.syntax import PtxError, Variable

Tensor = torch.Tensor | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct as C lays it out. `format` is that of Python's `struct`, with `P` for the address of an array.

    Example: `Struct("PPif", (x, y, 3, 0.5))`. `0P` at the end fills the struct up to a multiple of 8 bytes. A `P` also
    takes a number, or the address of another struct. The struct is passed by value, or by its address if the parameter
    is one.
    """

    format: str
    values: Sequence[Tensor | int | float | Struct]


Argument = Tensor | int | float | bytes | Struct
"""A buffer, which the kernel gets the address of and writes to; a number; a struct, or the bytes of one."""


class Places(Protocol):
    """Where arrays are put: the interpreter's own memory (`spaces.Buffers`), or a device's."""

    def place(self, octets: npt.NDArray[np.uint8]) -> int:
        """The address of an array of bytes; of one that was placed before, the same."""


def parameter_bytes(layout: Layout, args: Sequence[Argument], buffers: Places) -> bytes:
    """The bytes of all parameters; arrays are placed among the buffers. Raises PtxError."""
    wanted = layout.kernel.parameters
    if len(args) != len(wanted):
        kinds = listed(f".{parameter.type}" for parameter in wanted)
        raise PtxError(f"{len(args)} arguments were given; the kernel takes {len(wanted)}: {kinds}.")
    octets = bytearray(zeros(layout.parameter_bytes))
    for number, (argument, parameter, at) in enumerate(zip(args, wanted, layout.parameters, strict=True)):
        value = _encoded(argument, parameter, number, buffers)
        octets[at : at + len(value)] = value
    return bytes(octets)


def _encoded(argument: Argument, parameter: Variable, number: int, buffers: Places) -> bytes:
    kind, size = np.dtype(dtype_of(parameter.type)).kind, parameter.size
    whole = f"Argument {number}: .{parameter.type}"
    if isinstance(argument, bytes):
        if len(argument) != size:
            raise PtxError(f"Argument {number}: {len(argument)} bytes were given for {size}.")
        return argument
    if isinstance(argument, Struct):
        return _struct(argument, parameter, number, buffers)
    if isinstance(argument, torch.Tensor | np.ndarray):
        if size != 8 or kind == "f":
            raise PtxError(f"{whole} is no address, and an array was given.")
        return struct.pack("<Q", buffers.place(_octets(argument, number)))
    if isinstance(argument, float) and kind == "f":
        return struct.pack("<f" if size == 4 else "<d", argument)
    if isinstance(argument, float):
        raise PtxError(f"{whole} is no float, and {argument} was given.")
    if kind == "f":
        return struct.pack("<f" if size == 4 else "<d", float(argument))
    if not -(1 << 8 * size - 1) <= argument < 1 << 8 * size:
        raise PtxError(f"{whole} does not hold {argument}.")
    return (argument & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _struct(argument: Struct, parameter: Variable, number: int, buffers: Places) -> bytes:
    """A struct's bytes, or its address."""
    octets = _packed(argument, number, buffers)
    if len(octets) == parameter.size and parameter.type == "b8":
        return octets
    if parameter.size != 8:
        raise PtxError(f"Argument {number}: a struct of {len(octets)} bytes was given for {parameter.size}.")
    return struct.pack("<Q", _address(octets, buffers))


def _packed(argument: Struct, number: int, buffers: Places) -> bytes:
    values: list[Any] = []
    for value in argument.values:
        if isinstance(value, Struct):
            values.append(_address(_packed(value, number, buffers), buffers))
        elif isinstance(value, torch.Tensor | np.ndarray):
            values.append(buffers.place(_octets(value, number)))
        else:
            values.append(value)
    try:
        return struct.pack(f"@{argument.format}", *values)
    except struct.error as error:
        raise PtxError(f"Argument {number}: a struct {argument.format!r} of {len(values)} values: {error}.") from None


def _address(octets: bytes, buffers: Places) -> int:
    return buffers.place(np.frombuffer(bytearray(octets), np.uint8))


def _octets(array: torch.Tensor | npt.NDArray[Any], number: int) -> npt.NDArray[np.uint8]:
    """The array's own bytes."""
    if isinstance(array, torch.Tensor):
        if array.device.type != "cpu" or not array.is_contiguous():
            raise PtxError(f"Argument {number}: a contiguous tensor on the CPU was expected.")
        octets: npt.NDArray[np.uint8] = array.detach().reshape(-1).view(torch.uint8).numpy()
        return octets
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise PtxError(f"Argument {number}: a contiguous array that can be written to was expected.")
    return array.reshape(-1).view(np.uint8)
