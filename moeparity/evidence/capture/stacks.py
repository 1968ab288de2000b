"""Python stacks, taken as pairs of code and instruction; lines are looked up when a stack is met for the first time."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

_DEEPEST = 64
"""Frames that are kept of a stack, counted from the innermost."""

_OWN = str(Path(__file__).parent)

Frames = tuple[tuple[CodeType, int], ...]


def frames() -> Frames:
    """Where the program is now, innermost first."""
    frame: FrameType | None = sys._getframe(2)
    stack: list[tuple[CodeType, int]] = []
    while frame is not None and len(stack) < _DEEPEST:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(stack)


def lines(stack: Frames) -> tuple[str, ...]:
    """The stack as `file:line function`, innermost last, without the capture's own frames and torch's around them."""
    return tuple(
        f"{code.co_filename}:{_line(code, instruction)} {code.co_name}"
        for code, instruction in reversed(stack)
        if not _is_foreign(code.co_filename)
    )


def _is_foreign(file: str) -> bool:
    return file.startswith(_OWN) or file.endswith(("torch/nn/modules/module.py", "torch/utils/_contextlib.py"))


def _line(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return line or code.co_firstlineno
    return code.co_firstlineno
