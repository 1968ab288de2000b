"""A plain recorder for tests: every op and module of a program with its values whole, by TraceWriter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.records import Call, Head, Value
from moeparity.evidence.trace.writer import TraceWriter

Change = Callable[[str, Any, Any], Any]
"""Of an op's name, its arguments and its output, what it gives instead."""


class Recorder(TorchDispatchMode):
    """Ops and modules; `keep` says which values are kept whole, `ops` whether ops are recorded at all, `change` what an
    op gives in place of its own output.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: Callable[[torch.Tensor], bool] = torch.is_tensor,
        ops: bool = True,
        change: Change | None = None,
        **head: Any,
    ) -> None:
        super().__init__()
        self.writer = TraceWriter(
            folder, Head(made_by="a test", levels=("op", "module") if ops else ("module",), **head)
        )
        self.keep, self.ops, self.change = keep, ops, change
        self.alive: list[torch.Tensor] = []
        self.bases: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = {}
        self.views: dict[tuple[Any, ...], int] = {}
        self.stack: list[tuple[int, str]] = []
        self.calls = self.values = 0
        self.counts: dict[tuple[str, str], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.ops:
            return func(*args, **kwargs)
        number, inputs = self._next(), self._slots(args, kwargs)
        scalars = {str(i): a for i, a in enumerate(args) if isinstance(a, (int, float, bool, list)) and not _tensors(a)}
        scalars |= {k: a if isinstance(a, (int, float)) else str(a) for k, a in kwargs.items() if not _tensors(a)}
        out = func(*args, **kwargs)
        out = out if self.change is None else self.change(str(func), args, out)
        written = {}
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write and i < len(args):
                written[str(i)] = self.value(args[i])
        outputs = {} if written else self._slots(out if isinstance(out, tuple) else (out,), {})
        flags = tuple(["nan_born"] * (_nan(out) and not any(_nan(x) for x in _tensors((args, kwargs)))))
        self._call(number, "op", str(func), self.path, inputs, outputs, written=written, scalars=scalars, flags=flags)
        return out

    @property
    def path(self) -> str:
        return self.stack[-1][1] if self.stack else ""

    def _next(self) -> int:
        self.calls += 1
        return self.calls - 1

    def _call(self, number: int, level: str, name: str, path: str, inputs: Any, outputs: Any, **more: Any) -> None:
        nth = self.counts.get((path, name), 0)
        self.counts[path, name] = nth + 1
        inside = self.stack[-1][0] if self.stack else None
        self.writer.call(
            Call(
                id=number,
                level=level,
                name=name,
                path=path,
                nth=nth,
                inside=inside,
                inputs=inputs,
                outputs=outputs,
                **more,
            )
        )

    def _slots(self, args: Any, kwargs: Any) -> dict[str, int]:
        slots = {}
        for name, argument in [*((str(i), a) for i, a in enumerate(args)), *kwargs.items()]:
            if isinstance(argument, torch.Tensor):
                slots[name] = self.value(argument)
            elif isinstance(argument, (list, tuple)):
                slots |= {f"{name}.{j}": self.value(x) for j, x in enumerate(argument) if isinstance(x, torch.Tensor)}
        return slots

    def value(self, x: torch.Tensor) -> int:
        """The id of a tensor as it is now, written when it is new."""
        with torch._C._DisableTorchDispatch():
            x = x.detach()
            version = x._version if not x.is_inference() else 0
            if not x.numel():
                return self._write(x, None)
            key = x.untyped_storage().data_ptr(), version
            shape = (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype)
            if key in self.bases:
                base, own_shape = self.bases[key]
                if own_shape == shape:
                    return base
                if (key, shape) not in self.views:
                    self.views[key, shape] = self._write(x, base)
                return self.views[key, shape]
            if x.numel() != x.untyped_storage().nbytes() // x.element_size():
                return self._write(x, None)
            self.bases[key] = (self.values, shape)
            return self._write(x, None)

    def _write(self, x: torch.Tensor, base: int | None) -> int:
        number = self.values
        self.values += 1
        self.alive.append(x)
        rows = row_digests(x.clone()) if base is None else None
        dtype = str(x.dtype).removeprefix("torch.")
        shape, strides = tuple(x.shape), tuple(x.stride())
        digest = None if rows is None else value_digest(rows, shape, dtype)
        offset = int(x.storage_offset())
        value = Value(id=number, dtype=dtype, shape=shape, strides=strides, offset=offset, base=base, digest=digest)
        self.writer.value(value, rows=rows, tensor=x.clone() if base is None and self.keep(x) else None)
        return number


def _tensors(values: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(values)[0] if isinstance(x, torch.Tensor)]


def _nan(values: Any) -> bool:
    return any(x.is_floating_point() and bool(x.isnan().any()) for x in _tensors(values))


@contextmanager
def recording(folder: Path, model: torch.nn.Module, **options: Any) -> Iterator[Recorder]:
    """While the context lasts, what the model computes is recorded into a trace."""
    recorder = Recorder(folder, **options)
    handles = []
    entered: list[dict[str, int]] = []

    def before(path: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            recorder.stack.append((recorder._next(), path))
            entered.append(recorder._slots(args, kwargs))

        return hook

    def after(path: str) -> Any:
        def hook(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            number, _ = recorder.stack.pop()
            outputs = recorder._slots(
                *((), out) if isinstance(out, dict) else (out if isinstance(out, tuple) else (out,), {})
            )
            recorder._call(number, "module", type(module).__name__, path, entered.pop(), outputs)

        return hook

    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(path), with_kwargs=True))
        handles.append(module.register_forward_hook(after(path), with_kwargs=True))
    try:
        with recorder, torch.no_grad():
            yield recorder
        recorder.writer.close()
    finally:
        for handle in handles:
            handle.remove()
