"""Number formats that a matrix instruction multiplies. Importing this needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputFormat:
    """A binary format of numbers.

    precision: bits of a significand, the hidden one counted. least: exponent of the smallest normal number and of every
    subnormal. largest: largest finite number, None where the format has the range of fp32. container: dtype of torch
    whose tensors hold just these numbers, or more (`tf32`); None where torch has no such dtype.
    """

    name: str
    precision: int
    least: int
    largest: float | None
    container: str | None


FORMATS = {
    format_.name: format_
    for format_ in (
        InputFormat("bf16", 8, -126, None, "bfloat16"),
        InputFormat("fp16", 11, -14, 65504.0, "float16"),
        InputFormat("tf32", 11, -126, None, "float32"),
        InputFormat("fp8_e4m3", 4, -6, 448.0, "float8_e4m3fn"),
        InputFormat("fp8_e5m2", 3, -14, 57344.0, "float8_e5m2"),
        InputFormat("fp6_e2m3", 4, 0, 7.5, None),
        InputFormat("fp6_e3m2", 3, -2, 28.0, None),
        InputFormat("fp4_e2m1", 2, 0, 6.0, None),
    )
}
"""Formats by name, as profiles write it."""

NARROW = tuple(name for name in FORMATS if name.startswith(("fp8", "fp6", "fp4")))
"""Formats of at most 8 bits; the two factors of a product may differ in theirs."""
