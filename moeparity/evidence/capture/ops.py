"""What a capture must know of an op: read off its schema and tags, once for each overload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_EMPTY = ("aten::empty", "aten::new_empty")
_FILLING = ("aten::fill_", "aten::zero_", "aten::copy_", "aten::normal_", "aten::uniform_", "aten::random_")
_PARTLY = ("index_put", "index_copy", "index_fill", "index_add", "scatter", "masked_", "put_", "fill_diagonal")
_SILENT = ("profiler", "prim")
_IN_PLACE = ("allreduce", "broadcast", "reduce_", "recv")
"""Collectives of c10d that write their argument `tensors`; all others write those whose name begins with `output`."""
_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


@dataclass(frozen=True, slots=True)
class Op:
    """An op's part in a trace.

    `view`: its outputs look at its inputs and it computes nothing; `silent`: it is no computation. `mutated`: the
    arguments that it writes, by place and by name; `partly`: perhaps not all of them; `fills`: it reads nothing of
    them. `empty`: its outputs are allocated and not written. `seeded`: it draws from a generator, unless its argument
    `probability` is 0. `collective`: it speaks to other ranks; `waits`: it ends what another began. `looks_up`: it is
    given ids.
    """

    name: str
    view: bool = False
    silent: bool = False
    mutated: tuple[tuple[int, str], ...] = ()
    partly: bool = False
    fills: bool = False
    empty: bool = False
    seeded: bool = False
    probability: tuple[int, str] | None = None
    collective: bool = False
    waits: bool = False
    looks_up: bool = False

    def draws(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments draws from a generator."""
        if not self.seeded or self.probability is None:
            return self.seeded
        place, name = self.probability
        value = args[place] if place < len(args) else kwargs.get(name, 0.0)
        return bool(value != 0)


def op_of(func: Any) -> Op:
    """What an overload's schema and tags say."""
    schema = func._schema
    mutated = tuple((place, each.name) for place, each in enumerate(schema.arguments) if _writes(schema.name, each))
    dropouts = [(place, each.name) for place, each in enumerate(schema.arguments) if each.name == "dropout_p"]
    space, _, base = schema.name.partition("::")
    return Op(
        str(func),
        view=bool(func.is_view) and not mutated,
        silent=space in _SILENT or base.startswith("_wrap_tensor"),
        mutated=mutated,
        partly=any(word in schema.name for word in _PARTLY),
        fills=schema.name in _FILLING or (space == "c10d" and not base.startswith(_IN_PLACE)),
        empty=schema.name.startswith(_EMPTY),
        seeded=torch.Tag.nondeterministic_seeded in func.tags,
        probability=dropouts[0] if dropouts else None,
        collective=space in _COLLECTIVES,
        waits=schema.name == "_c10d_functional::wait_tensor",
        looks_up=schema.name == "aten::embedding",
    )


def _writes(name: str, argument: Any) -> bool:
    """Whether an op writes that argument: c10d's schemas don't say so."""
    space, _, base = name.partition("::")
    if space == "c10d":
        return bool(argument.name.startswith("output") or (argument.name == "tensors" and base.startswith(_IN_PLACE)))
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def tensors(value: Any, slot: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an argument or a result, each with its slot: `0`, `0.1`, `0.name`."""
    if isinstance(value, torch.Tensor):
        yield slot, value
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            if part is not None and not isinstance(part, (int, float, str)):
                yield from tensors(part, f"{slot}.{place}" if slot else str(place))
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if part is not None and not isinstance(part, (int, float, str)):
                yield from tensors(part, f"{slot}.{name}" if slot else str(name))


def outputs(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a result; one that is a single tensor has slot `0`."""
    return tensors(result, "0" if isinstance(result, torch.Tensor) else "")


def plain(value: Any) -> Any:
    """An argument that is no tensor, as JSON can say it; None for one that holds tensors."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        parts = [plain(part) for part in value]
        return None if any(part is None for part in parts) else parts
    if isinstance(value, (torch.Tensor, Mapping)):
        return None
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    return _boxed(value) if isinstance(value, torch.ScriptObject) else type(value).__name__


def _boxed(value: torch.ScriptObject) -> str:
    """What of a collective's own objects is the same in every run: the operation, the group and its size."""
    from torch._C._distributed_c10d import ProcessGroup

    kind = str(value._type())
    if kind.endswith("ProcessGroup"):
        group = ProcessGroup.unbox(value)
        return f"group {group.group_name} of {group.size()}"
    return str(kind.rpartition(".")[2])
