"""Python stacks, taken as pairs of code and instruction; lines are looked up when a stack is met for the first time."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

_DEEPEST = 64
"""Frames that are kept of a stack, counted from the innermost."""

_OWN = str(Path(__file__).parent)

_AROUND = (
    "torch/nn/modules/module.py",
    "torch/utils/_contextlib.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
)
"""Files of torch whose frames stand around every call."""

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
    shown = (_shown(code, instruction) for code, instruction in reversed(stack))
    return tuple(frame for frame in shown if frame)


@lru_cache(maxsize=1 << 16)
def _shown(code: CodeType, instruction: int) -> str:
    """One frame; empty for those that are left out."""
    file = code.co_filename
    if file.startswith(_OWN) or file.endswith(_AROUND):
        return ""
    for start, end, line in code.co_lines():
        if start <= instruction < end:
            return f"{file}:{line or code.co_firstlineno} {code.co_name}"
    return f"{file}:{code.co_firstlineno} {code.co_name}"
