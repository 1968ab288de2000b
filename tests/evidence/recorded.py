"""Traces of modules, written by hooks: every call of a module, with its tensors whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.records import Call, Head, Value
from moeparity.evidence.trace.write import TraceWriter


class Recorder:
    """Hooks that write what goes into a module and what comes out of it."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self.calls = self.values = 0
        self.open: list[tuple[int, dict[str, int]]] = []

    def enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        number, self.calls = self.calls, self.calls + 1
        self.open.append((number, self.named({**{str(i): arg for i, arg in enumerate(args)}, **kwargs})))

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        number, inputs = self.open.pop()
        items = output if isinstance(output, (tuple, list)) else (output,)
        fields = output if isinstance(output, dict) else {str(i): item for i, item in enumerate(items)}
        call = Call(
            id=number,
            level="module",
            name=type(module).__name__,
            path=path,
            inside=self.open[-1][0] if self.open else None,
            inputs=inputs,
            outputs=self.named(fields),
        )
        self.writer.call(call)

    def named(self, fields: Mapping[str, Any]) -> dict[str, int]:
        slots: dict[str, int] = {}
        for slot, item in fields.items():
            if isinstance(item, torch.Tensor):
                slots[slot] = self.value(item)
            elif isinstance(item, (tuple, list)):
                slots |= self.named({f"{slot}.{i}": part for i, part in enumerate(item)})
        return slots

    def value(self, tensor: torch.Tensor) -> int:
        number, self.values = self.values, self.values + 1
        dtype = str(tensor.dtype).removeprefix("torch.")
        kept = tensor.detach().clone(memory_format=torch.contiguous_format)
        rows = row_digests(kept)
        value = Value(
            id=number,
            dtype=dtype,
            shape=tuple(tensor.shape),
            strides=tuple(kept.stride()),
            digest=value_digest(rows, tensor.shape, dtype),
        )
        self.writer.value(value, rows=rows, tensor=kept)
        return number


@contextmanager
def recorded(model: nn.Module, folder: Path, **head: Any) -> Iterator[Path]:
    """Writes a trace of what the model does inside."""
    with TraceWriter(folder, Head(made_by="tests", **head)) as writer:
        recorder = Recorder(writer)
        hooks = []
        for path, module in model.named_modules():
            hooks.append(
                module.register_forward_pre_hook(lambda _, args, kwargs: recorder.enter(args, kwargs), with_kwargs=True)
            )
            hooks.append(
                module.register_forward_hook(lambda own, _, output, path=path: recorder.leave(path, own, output))
            )
        try:
            yield folder
        finally:
            for hook in hooks:
                hook.remove()
