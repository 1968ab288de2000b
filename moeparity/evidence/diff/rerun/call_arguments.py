"""A recorded call's arguments, put together again by its op's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeparity.evidence.diff.rerun.way import NotDrawnError
from moeparity.evidence.trace.records import Call

_PLACES = ("device", "layout", "memory_format", "pin_memory", "non_blocking")
"""Arguments that say where a value lies, and change none of it."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call by their names in the op's schema. Arguments that were not given are left out.

    `out`: the recorded dtypes of its outputs.
    """

    op: Any
    schema: Any
    by_name: Mapping[str, Any]
    out: tuple[torch.dtype, ...]

    def __getitem__(self, name: str) -> Any:
        """The argument of that name; None where it was not given and has no default."""
        if name in self.by_name:
            return self.by_name[name]
        return next((each.default_value for each in self.schema.arguments if each.name == name), None)

    def has(self, **expected: Any) -> bool:
        """Whether these arguments are all as expected."""
        return all(self[name] == value for name, value in expected.items())


def overload(name: str) -> Any:
    """The op of torch that a call names, such as `aten.mm.default`. Raises NotDrawnError for any other."""
    space, _, rest = name.partition(".")
    base, _, form = rest.partition(".")
    try:
        return getattr(getattr(torch.ops.aten, base), form) if space == "aten" else None
    except AttributeError:
        return None


def arguments(call: Call, read: Callable[[int], Tensor], unwritten: Callable[[int], Tensor]) -> Arguments:
    """A call's arguments. `read` gives the tensor of a value's id, `unwritten` one like it that nothing was written to.

    Raises NotDrawnError where some are missing.
    """
    op = overload(call.name)
    if op is None:
        raise NotDrawnError(f"{call.name} is no op of torch's that is run again here")
    schema: Any = op._schema  # noqa: SLF001  what torch has no public name for
    by_name: dict[str, Any] = {}
    for place, each in enumerate(schema.arguments):
        if each.name in _PLACES:
            continue
        slot = each.name if each.kwarg_only else str(place)
        value = _argument(call, slot, read)
        if value is None and not each.kwarg_only:
            value = _argument(call, each.name, read)
        if value is None and slot in call.written:
            value = unwritten(call.written[slot])
        if value is not None:
            by_name[each.name] = _typed(value, str(each.type))
        elif not each.has_default_value() and "Optional" not in str(each.type):
            raise NotDrawnError(f"the argument {each.name} of {call.name} was not recorded")
    return Arguments(op, schema, by_name, ())


def _argument(call: Call, slot: str, read: Callable[[int], Tensor]) -> Any:
    if slot in call.inputs:
        return read(call.inputs[slot])
    parts = {int(name[len(slot) + 1 :]): number for name, number in call.inputs.items() if _part_of(name, slot)}
    if parts:
        return [read(parts[place]) if place in parts else None for place in range(max(parts) + 1)]
    return call.scalars.get(slot)


def _part_of(name: str, slot: str) -> bool:
    return name.startswith(f"{slot}.") and name[len(slot) + 1 :].isdigit()


def _typed(value: Any, kind: str) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        dtype = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(dtype, torch.dtype):
            raise NotDrawnError(f"{value} is no dtype")
        return dtype
    return [value] if "List" in kind and not isinstance(value, list) else value
