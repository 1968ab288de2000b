"""Traces as some program would have them, written of what a profile computes: by its map, module by module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.evidence.maps.module_map import ValuePlace, load_map
from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.records import Call, Head, Value
from moeparity.evidence.trace.writer import TraceWriter
from moeparity.inputs.model import Model
from moeparity.plan.address import file_key

Change = Callable[[str, torch.Tensor], torch.Tensor | None]
"""A value by name, as it is to be written; None: only its digest."""


def written(
    folder: Path,
    model: Model,
    ids: torch.Tensor,
    *,
    program: str = "transformers",
    name: str = "Embedding",
    change: Change = lambda _, tensor: tensor,
    further: tuple[str, ...] = (),
    whole: bool = True,
    settings: Mapping[str, str] = MappingProxyType({}),
    **head: Any,
) -> Path:
    """A trace of one forward under hf-eager with other `settings`. `name`: the class of the module that ids go into;
    `further`: paths of more modules.
    """
    module_map = load_map(program, Where(Path("tests")))
    computed = forward(model, ids, profile="hf-eager", save=["**"], dtype="bf16", settings=settings)
    slots: dict[str, dict[str, dict[str, torch.Tensor]]] = {}
    columns: dict[tuple[str, str, str], list[tuple[int, torch.Tensor]]] = {}
    nodes = {value: node for node in model.graph.nodes for value in node.values}
    for value, places in module_map.on(model.graph).items():
        tensor = computed[file_key(value)]
        rows = tensor.movedim(nodes[value].op.tokens.axis, 1).flatten(2)
        # The module behind the last layer is no layer.
        place = next(place for place in places if f"layers.{model.graph.layers}." not in place.module)
        if place.columns is None:
            _slots(slots, place)[place.slots[0]] = rows[..., : rows.shape[-1] // place.repeated]
        else:
            key = (place.module, place.side, place.slots[0])
            columns.setdefault(key, []).append((place.columns[0], rows))
    for (module, side, slot), parts in columns.items():
        ordered = [rows for _, rows in sorted(parts, key=lambda part: part[0])]
        slots.setdefault(module, {}).setdefault(side, {})[slot] = torch.cat(ordered, dim=-1)
    _slots(slots, module_map.tokens[0])[module_map.tokens[0].slots[0]] = ids
    writer = TraceWriter(folder, Head(made_by="tests", **head))
    _write(writer, slots, module_map.tokens[0].module, name, change, further)
    writer.close(whole=whole)
    return folder


def _slots(slots: dict[str, dict[str, dict[str, torch.Tensor]]], place: ValuePlace) -> dict[str, torch.Tensor]:
    return slots.setdefault(place.module, {}).setdefault(place.side, {})


def _write(
    writer: TraceWriter,
    slots: Mapping[str, Mapping[str, Mapping[str, torch.Tensor]]],
    first: str,
    name: str,
    change: Change,
    further: tuple[str, ...],
) -> None:
    numbers = iter(range(1 << 30))

    def slots_of(module: str, side: str) -> dict[str, int]:
        return {
            slot: _value(writer, next(numbers), tensor, change(f"{module} {side}", tensor))
            for slot, tensor in slots.get(module, {}).get(side, {}).items()
        }

    modules = [first, *(module for module in slots if module != first), *further]
    for number, module in enumerate(modules):
        module_name = name if module == first else "Module"
        inputs, outputs = slots_of(module, "input"), slots_of(module, "output")
        writer.call(Call(id=number, level="module", name=module_name, path=module, inputs=inputs, outputs=outputs))


def _value(writer: TraceWriter, number: int, values: torch.Tensor, tensor: torch.Tensor | None) -> int:
    shown = (values if tensor is None else tensor).contiguous()
    dtype, rows = str(shown.dtype).removeprefix("torch."), row_digests(shown)
    digest = value_digest(rows, shown.shape, dtype)
    value = Value(id=number, dtype=dtype, shape=tuple(shown.shape), strides=tuple(shown.stride()), digest=digest)
    writer.value(value, rows=rows, tensor=None if tensor is None else shown.clone())
    return number
