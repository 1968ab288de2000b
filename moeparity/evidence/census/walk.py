"""Every tensor that modules hold, at any depth, with the path by which it is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from moeparity.evidence.capture.seen import overrides
from moeparity.evidence.census.members import Member, attributes, class_members, layout_of, members, of_libraries, table

TensorKind = Literal["parameter", "parametrised", "buffer", "computed", "attribute"]
"""`parametrised`: the original of a parametrisation. `computed`: a buffer that no checkpoint keeps. `attribute`: what
nobody registered.
"""

_MOST = 1 << 20
"""So many objects are looked into."""
_REGISTERED = (("_parameters", "parameter"), ("_buffers", "buffer"))
_TABLES = frozenset({"._parameters", "._buffers", "._modules"})
_GRAPHS = frozenset({"CUDAGraph", "NPUGraph", "XPUGraph"})


@dataclass(slots=True, eq=False)
class HeldTensor:
    """A tensor and how it is reached.

    path: of a weight its registered name (`layers.0.attn.kv_b_proj.weight`), of another tensor the attributes that lead
    to it (`layers[0].attn.W_UV`). module: the innermost module on the path. holder, holder_path: the object that has it
    as an attribute or entry, and that object's path. others: further paths to it. twins: further names of a weight.
    """

    path: str
    tensor: torch.Tensor
    kind: TensorKind
    module: str
    holder: Any
    holder_path: str
    others: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Walk:
    """What modules hold. tensors: each once. modules: by name; paths: of these, the way to
    each. graphs: captured graphs, path to identity. unseen: what
    was not looked into, in words.
    """

    tensors: list[HeldTensor] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    graphs: dict[str, int] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


def walked(modules: Sequence[nn.Module]) -> Walk:
    """Every tensor that these modules hold; names of several modules begin with their number. No code of theirs is run,
    and nothing of them is kept beyond the walk that is returned.
    """
    return _Walker(modules).walk


@dataclass(frozen=True, slots=True, eq=False)
class _Stop:
    """An object that is to be looked into."""

    path: str
    thing: Any
    module: str


class _Walker:
    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.walk = Walk()
        self._met: dict[int, Any] = {}  # the objects stay alive, so that no other gets their number
        self._classes: set[type] = set()
        self._tensors: dict[int, HeldTensor] = {}
        self._waiting: deque[_Stop] = deque()
        for place, module in enumerate(modules):
            self._register(module, f"{place}" if len(modules) > 1 else "", f"[{place}]" if len(modules) > 1 else "")
        while self._waiting:
            if len(self._met) > _MOST:
                self.walk.unseen.append(f"after {_MOST:,} objects nothing more was looked into")
                break
            self._look_into(self._waiting.popleft())
        self.walk.tensors = list(self._tensors.values())

    def _register(self, root: nn.Module, name: str, path: str) -> None:
        """Enter the modules below one by their registered names, and their parameters and buffers."""
        pending = [(root, name, path)]
        while pending:
            module, name, path = pending.pop()
            if id(module) in self._met:
                self._enter_weights(module, name)
                continue
            self._met[id(module)] = module
            self.walk.modules[name] = module
            self.walk.paths[name] = path
            self._enter_weights(module, name)
            self._waiting.append(_Stop(path, module, name))
            for child_name, child in reversed(list(dict.items(table(module, "_modules")))):
                if layout_of(type(child)).sort == "module":
                    step = f"[{child_name}]" if child_name.isdecimal() else f".{child_name}" if path else child_name
                    pending.append((child, f"{name}.{child_name}" if name else child_name, path + step))

    def _enter_weights(self, module: nn.Module, name: str) -> None:
        unkept = attributes(module).get("_non_persistent_buffers_set") or ()
        for slot, sort in _REGISTERED:
            for leaf, tensor in list(dict.items(table(module, slot))):
                if layout_of(type(tensor)).sort != "tensor":
                    continue
                kind: TensorKind = "computed" if leaf in unkept else "parameter" if sort == "parameter" else "buffer"
                kind = "parametrised" if ".parametrizations." in f".{name}." else kind
                stop = _Stop(self.walk.paths.get(name, ""), module, name)
                self._enter(f"{name}.{leaf}" if name else leaf, tensor, kind, stop)

    def _enter(self, path: str, tensor: torch.Tensor, kind: TensorKind, stop: _Stop) -> None:
        met = self._tensors.get(id(tensor))
        if met is not None:
            (met.others if kind == "attribute" else met.twins).append(path)
            return
        self._met[id(tensor)] = tensor
        inner = list(_inner(tensor)) if overrides(type(tensor)) else []
        for attribute, part in inner:
            whole_path = path if len(inner) == 1 else f"{path}{attribute}"
            if id(part) not in self._tensors:
                self._met[id(part)] = part
                self._tensors[id(part)] = HeldTensor(whole_path, part, kind, stop.module, stop.thing, stop.path)
        if not inner:
            self._tensors[id(tensor)] = HeldTensor(path, tensor, kind, stop.module, stop.thing, stop.path)
        self._waiting.append(_Stop(path, tensor, stop.module))

    def _look_into(self, stop: _Stop) -> None:
        kind = type(stop.thing)
        if kind.__name__ in _GRAPHS:
            self.walk.graphs[stop.path] = id(stop.thing)
        if kind not in self._classes and not of_libraries(kind):
            self._classes.add(kind)
            for path, value in class_members(kind):
                self._reach(path, value, stop)
        try:
            for step, value in self._members(stop):
                self._reach(stop.path + step if stop.path else step.removeprefix("."), value, stop)
        except RuntimeError as error:  # another thread changes it meanwhile
            self.walk.unseen.append(f"{stop.path}: {error}")

    def _members(self, stop: _Stop) -> Iterator[Member]:
        """What an object holds; of a module that nobody registered also its weights and modules, by their names."""
        is_registered = self.walk.modules.get(stop.module) is stop.thing
        is_module = layout_of(type(stop.thing)).sort == "module"
        for step, value in members(stop.thing):
            if not is_module or step not in _TABLES:
                yield step, value
            elif not is_registered and isinstance(value, dict):
                yield from ((f".{name}", entry) for name, entry in list(dict.items(value)))

    def _reach(self, path: str, value: Any, stop: _Stop) -> None:
        sort = layout_of(type(value)).sort
        if sort == "atom":
            return
        if sort == "tensor":
            self._enter(path, value, "attribute", stop)
        elif id(value) not in self._met:
            self._met[id(value)] = value
            self._waiting.append(_Stop(path, value, stop.module))


def _inner(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a subclass keeps its values in."""
    return ((step, part) for step, part in members(tensor) if layout_of(type(part)).sort == "tensor")
