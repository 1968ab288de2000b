"""PTX text cut into its kernels at once; the body of a kernel is read when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.ptx.reader import Reader
from moeparity.ptx.syntax import Kernel, PtxError, Variable

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\b")
_BRACE = re.compile(r"[{};]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A PTX file cut up: its header, variables outside kernels, and the unread text of each kernel with its line."""

    target: str
    version: str
    variables: dict[str, Variable]
    kernels: dict[str, tuple[str, int]]


def read(text: str) -> Source:
    """Cuts a PTX file up. Raises PtxError where it is none."""
    text = _COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    target = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    version = re.search(r"^\s*\.version\s+([\d.]+)", text, re.MULTILINE)
    if target is None or version is None:
        raise PtxError("This is no PTX: a file begins with `.version`, `.target` and `.address_size`.")
    kernels, outside, end = {}, [], 0
    for begin, stop, kind in _functions(text):
        outside.append(text[end:begin])
        # Lines stay what they are in the file.
        outside.append("\n" * text.count("\n", begin, stop))
        end = stop
        if kind == "entry":
            name = re.search(r"\.entry\s+([\w$]+)", text[begin:stop])
            if name is None:
                raise PtxError(f"Line {1 + text.count(chr(10), 0, begin)}: an `.entry` without a name.")
            kernels[name.group(1)] = (text[begin:stop], 1 + text.count("\n", 0, begin))
    variables = Reader("".join([*outside, text[end:]]), 1).module_variables()
    return Source(target=target.group(1), version=version.group(1), variables=variables, kernels=kernels)


def kernel_of(text: str, line: int) -> Kernel:
    """The kernel that a piece of `Source.kernels` holds."""
    return Reader(text, line).kernel()


def _functions(text: str) -> Iterator[tuple[int, int, str]]:
    """Begin, end and kind of every function; a declaration without a body ends with its semicolon."""
    end = 0
    while (head := _FUNCTION.search(text, end)) is not None:
        depth = 0
        for brace in _BRACE.finditer(text, head.end()):
            depth += {"{": 1, "}": -1, ";": 0}[brace.group()]
            if depth == 0:
                end = brace.end()
                break
        else:
            raise PtxError(f"Line {1 + text.count(chr(10), 0, head.start())}: a function without an end.")
        yield head.start(), end, head.group(1)
