"""Dataclasses to plain JSON, with tensors apart, and back. Safe: no pickle, no code is run, only known classes are
built.

Every value that JSON can't express becomes an object with one tagged key; `Codec` defines the tags.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np
import torch

from moeparity.metrics.exact import Exact

Plain = Any
"""What the json module writes: None, bool, int, float, str, list, dict with str keys."""


class CodecError(Exception):
    """A value that can't be written, or data that `Codec.encode` can't have written."""


def classes_of(root: type) -> dict[type, None]:
    """The dataclasses that instances of `root` consist of, by its annotations, itself included."""
    classes: dict[type, None] = {}
    hints: list[Any] = [root]
    while hints:
        hint = hints.pop()
        if isinstance(hint, type) and is_dataclass(hint) and hint not in classes:
            classes[hint] = None
            hints += get_type_hints(hint).values()
        hints += get_args(hint)
    return classes


class Codec:
    """Writes and reads values made of None, bool, int, float, Exact, str, tensors, arrays of numbers, list, tuple, set,
    frozenset, dict, Counter and dataclasses among the `classes`.

    A dataclass is written under its own name, without its module, so that it can be read after the class has moved. It
    is read field by field, without `__init__`; `later` makes a field that an earlier version did not write, from the
    others. `objects` (graph nodes) are written by name only, since the reader has them. Restored exactly: floats that
    are not finite, tuples and sets, keys of any kind, the order of dicts, and one tensor in two places. Tensors come
    back on their device, contiguous.
    """

    def __init__(
        self,
        classes: Iterable[type],
        objects: Mapping[str, object] | None = None,
        later: Mapping[str, Callable[[Any], object]] | None = None,
    ) -> None:
        self.classes: dict[str, type] = {}
        for cls in classes:
            if not is_dataclass(cls):
                raise CodecError(f"{cls.__qualname__} is no dataclass: what it is made of cannot be known")
            if self.classes.setdefault(cls.__qualname__, cls) is not cls:
                raise CodecError(f"two classes are called {cls.__qualname__}: which is meant cannot be known")
        self.objects, self.later = dict(objects or {}), dict(later or {})

    def encode(self, value: object) -> tuple[Plain, dict[str, torch.Tensor]]:
        """The value as plain data, and its tensors by the names that the data uses. Raises CodecError."""
        writer = _Writer(self)
        return writer.plain(value), writer.tensors

    def decode(self, plain: Plain, tensors: Mapping[str, torch.Tensor]) -> Any:
        """The value that was encoded. Raises CodecError for anything that `encode` does not write."""
        return _Reader(self, tensors).value(plain)


class _Writer:
    def __init__(self, codec: Codec) -> None:
        self.names = {cls: name for name, cls in codec.classes.items()}
        self.object_names = {id(item): name for name, item in codec.objects.items()}
        self.tensors: dict[str, torch.Tensor] = {}
        # Keeps the tensors alive, so that no id is used twice.
        self.tensor_names: dict[int, tuple[str, torch.Tensor]] = {}

    def plain(self, value: object) -> Plain:
        """A value as plain data; its tensors are stored under names."""
        kind = type(value)
        if value is None or kind in {bool, int, str}:
            return value
        if id(value) in self.object_names:
            return {"named": self.object_names[id(value)]}
        if isinstance(value, Exact):
            return {"exact": [self.plain(part) for part in value.parts]}
        if isinstance(value, float) and kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, torch.Tensor) and kind is torch.Tensor:
            return {"tensor": [self._tensor(value), str(value.device)]}
        if isinstance(value, np.ndarray) and kind is np.ndarray:
            if value.dtype.kind not in "biuf":
                raise CodecError(f"an array of {value.dtype} cannot be written")
            return {"array": self._tensor(torch.from_numpy(np.array(value)))}
        if isinstance(value, list | tuple | set | frozenset) and kind in {list, tuple, set, frozenset}:
            # A set has no order; sorted, equal sets are written alike.
            items = [self.plain(item) for item in (sorted(value, key=repr) if kind in {set, frozenset} else value)]
            return items if kind is list else {kind.__name__: items}
        if isinstance(value, dict) and kind in {dict, Counter}:
            return {kind.__name__: [[self.plain(key), self.plain(item)] for key, item in value.items()]}
        if kind in self.names:
            state = {field.name: self.plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]
            return {"class": self.names[kind], "fields": state}
        raise CodecError(f"a {kind.__module__}.{kind.__qualname__} cannot be written")

    def _tensor(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self.tensor_names:
            name = str(len(self.tensor_names))
            self.tensor_names[id(tensor)] = (name, tensor)
            # A copy: safetensors refuses two tensors that share memory.
            self.tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return self.tensor_names[id(tensor)][0]


class _Reader:
    def __init__(self, codec: Codec, tensors: Mapping[str, torch.Tensor]) -> None:
        self.codec, self.tensors = codec, tensors
        self.device_tensors: dict[tuple[str, str], torch.Tensor] = {}

    def value(self, plain: Plain) -> Any:
        """The value for which this plain data was written."""
        if plain is None or isinstance(plain, bool | int | float | str):
            return plain
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        try:
            if plain.keys() == {"class", "fields"}:
                return self._dataclass(plain["class"], plain["fields"])
            ((tag, content),) = plain.items()
            return self._tagged(tag, content)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise CodecError(f"not what a value is written as: {error}") from None

    def _tagged(self, tag: str, content: Plain) -> Any:
        match tag:
            case "named":
                return self.codec.objects[content]
            case "exact":
                return Exact([self.value(part) for part in content])
            case "float":
                return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
            case "tensor":
                return self._tensor(*content)
            case "array":
                return self._tensor(content, "cpu").numpy()
            case "tuple" | "set" | "frozenset":
                container = {"tuple": tuple, "set": set, "frozenset": frozenset}[tag]
                return container(self.value(item) for item in content)
            case "dict" | "Counter":
                pairs = {self.value(key): self.value(item) for key, item in content}
                return pairs if tag == "dict" else Counter(pairs)
        raise CodecError(f"unknown tag {tag!r}")

    def _tensor(self, name: str, device: str) -> torch.Tensor:
        if (name, device) not in self.device_tensors:
            self.device_tensors[name, device] = self.tensors[name].to(device)
        return self.device_tensors[name, device]

    def _dataclass(self, name: str, state: Mapping[str, Plain]) -> object:
        class_name = name.rpartition(".")[2]
        cls = self.codec.classes[class_name]
        names = [field.name for field in fields(cls)]
        later_fields = [field for field in names if field not in state and f"{class_name}.{field}" in self.codec.later]
        if list(state) != [field for field in names if field not in later_fields]:
            raise CodecError(f"{name} has the fields {names}, not {list(state)}")
        instance: object = object.__new__(cls)
        for field, item in state.items():
            object.__setattr__(instance, field, self.value(item))
        for field in later_fields:
            object.__setattr__(instance, field, self.codec.later[f"{class_name}.{field}"](instance))
        return instance
