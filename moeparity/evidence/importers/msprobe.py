"""Ascend msprobe's dump.json: module and API calls with statistics, and tensors as .pt or .npy.

Written by `DataWriter` and `PytorchDataProcessor` (mindstudio-probe 26.2.0, msprobe/core/dump/data_dump): keys
`Module.PATH.CLASS.forward.N`, `Functional|Torch|Tensor....NAME.N.forward`, and the same with `backward`; each
{input_args, input_kwargs, output} (`input`, `output` of backward), `parameters` of modules, whose gradients have keys
`Module.PATH.CLASS.parameters_grad.N`; tensors lie in `dump_tensor_data` under `data_name`. `construct.json` says in
which module each call lies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeparity import paths
from moeparity.errors import TraceError, Where
from moeparity.evidence.importers.assembled import Content, Described, Event, is_tensor, write_trace
from moeparity.evidence.importers.files import beside, read_json, read_pt
from moeparity.evidence.trace.records import Head

_MODULE = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.(?P<name>\w+)\.(?P<phase>forward|backward)\.\d+")
_GRADIENTS = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.(?P<name>\w+)\.parameters_grad\.\d+")
_API = re.compile(r"(?P<name>\w+\..+)\.\d+\.(?P<phase>forward|backward)")
_FOLDER = re.compile(r"rank(\d+)")
_STEP = re.compile(r"step(\d+)")
_EXPECTED = "dump.json of msprobe"


def import_msprobe(path: Path, out: Path) -> None:
    """A dump.json, its folder, a step's folder or the folder of all steps. Raises TraceError."""
    by_rank: dict[int, list[tuple[int, Path]]] = {}
    for file in _files(path):
        rank, step = (_number(pattern, file) for pattern in (_FOLDER, _STEP))
        if any(step == number for number, _ in by_rank.get(rank, [])):
            raise TraceError(f"{Where(path)}: two dumps of step {step} and rank {rank}. Name the folder of one.")
        by_rank.setdefault(rank, []).append((step, file))
    for rank, files in by_rank.items():
        missing: list[str] = []
        events = [event for step, file in sorted(files) for event in _events(file, step, missing)]
        notes = [f"{len(missing)} values have statistics alone, such as {missing[0]}."] if missing else []
        head = Head(rank=rank, ranks=len(by_rank), made_by="msprobe", levels=("op", "module", "gradient"))
        write_trace(out, head, events, notes)


def _files(path: Path) -> list[Path]:
    if paths.is_file(path):
        return [path]
    patterns = ("dump.json", "rank*/dump.json", "proc*/dump.json", "step*/rank*/dump.json", "step*/proc*/dump.json")
    files = [file for pattern in patterns for file in sorted(path.glob(pattern))]
    if not files:
        raise TraceError(f"{Where(path)}: no dump.json in it, nor in rank*/ or step*/rank*/; expected {_EXPECTED}.")
    return files


def _number(pattern: re.Pattern[str], file: Path) -> int:
    numbers = [match[1] for part in file.parts[-3:-1] if (match := pattern.fullmatch(part))]
    return int(numbers[-1]) if numbers else 0


def _events(file: Path, step: int, missing: list[str]) -> Iterator[Event]:
    document = read_json(file, _EXPECTED)
    data = document.get("data")
    if not isinstance(data, dict):
        raise TraceError(f"{Where(file)}: no `data`; expected {_EXPECTED}.")
    reading = _Reading(file, missing)
    construct = file.with_name("construct.json")
    inside = read_json(construct, "construct.json of msprobe") if paths.is_file(construct) else {}
    events: dict[str, Event] = {}
    for place, (key, entry) in enumerate(data.items()):
        event = _event(key, place, step)
        if not isinstance(entry, dict):
            continue
        if event is None:
            events |= {f"{key}.{gradient.name}": gradient for gradient in _gradients(key, entry, place, step, reading)}
            continue
        slot_groups = _slots(entry.get("input_args", entry.get("input"))), _slots(entry.get("input_kwargs"))
        event.inputs = {slot: slot_value for slots in slot_groups for slot, slot_value in reading.tensors(slots)}
        event.outputs = dict(reading.tensors(_slots(entry.get("output"))))
        event.weights = dict(reading.tensors(_slots(entry.get("parameters"))))
        event.scalars = {slot: leaf["value"] for slots in slot_groups for slot, leaf in slots if "value" in leaf}
        events[key] = event
    _nest(events, inside)
    yield from events.values()


def _event(key: str, place: int, step: int) -> Event | None:
    """A call by its key; None for what is none."""
    match = _MODULE.fullmatch(key)
    level = "module" if match else "op"
    match = match or _API.fullmatch(key)
    if match is None:
        return None
    path = match["path"] if level == "module" else ""
    return Event(level=level, name=match["name"], path=path, first=place, last=place, step=step, phase=match["phase"])


def _gradients(key: str, entry: Mapping[str, Any], place: int, step: int, reading: _Reading) -> Iterator[Event]:
    """The gradients of a module's parameters, each a call as `moeparity capture --level gradient` records it."""
    match = _GRADIENTS.fullmatch(key)
    for parameter, leaves in entry.items() if match else ():
        gradients = dict(reading.tensors([(parameter, leaf) for _, leaf in _slots(leaves)]))
        if match and gradients:
            name = f"{match['name']}.{parameter}.backward"
            yield Event(
                level="gradient", name=name, path=match["path"], first=place, last=place, step=step, phase="backward",
                outputs=gradients,
            )  # fmt: skip


def _nest(events: Mapping[str, Event], inside: Mapping[str, Any]) -> None:
    """Modules are entered before what lies in them; ops have the path of their module."""
    for key, event in events.items():
        parent = inside.get(key)
        parent = parent[0] if isinstance(parent, list) and parent else parent
        if event.level == "op" and isinstance(parent, str):
            match = _MODULE.fullmatch(parent)
            event.path = match["path"] if match else ""
        around: set[str] = set()
        while isinstance(parent, str) and parent in events and parent not in around:
            outer = events[parent]
            outer.first, outer.last = min(outer.first, event.first), max(outer.last, event.last)
            around.add(parent)
            parent = inside.get(parent)


class _Reading:
    def __init__(self, file: Path, missing: list[str]) -> None:
        self._folder, self._missing = file.parent / "dump_tensor_data", missing

    def tensors(self, slots: list[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, Content]]:
        """The tensors among these, whole where they were dumped."""
        for slot, leaf in slots:
            if str(leaf.get("type")) not in {"torch.Tensor", "mindspore.Tensor"} and "data_name" not in leaf:
                continue
            name = leaf.get("data_name")
            described = self._described(slot, leaf)
            if not isinstance(name, str):
                self._missing.append(f"{slot} of shape {list(described.shape)}")
                yield slot, described
                continue
            yield slot, self._tensor(beside(self._folder, name, "data_name"), described)

    def _described(self, slot: str, leaf: Mapping[str, Any]) -> Described:
        shape = leaf.get("shape") or []
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise TraceError(f"{Where(self._folder.parent)}: {slot} has shape {shape!r}; expected a list of sizes.")
        return Described(str(leaf.get("dtype")).removeprefix("torch."), tuple(shape))

    def _tensor(self, path: Path, described: Described) -> torch.Tensor:
        tensor = _from_npy(path) if path.suffix == ".npy" else read_pt(path)
        if not is_tensor(tensor) or tuple(tensor.shape) != described.shape:
            raise TraceError(f"{Where(path)}: expected a tensor of shape {list(described.shape)}, as dump.json says.")
        whole: torch.Tensor = tensor
        return whole


def _from_npy(path: Path) -> torch.Tensor:
    try:
        paths.measured(path, "torch.save")
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except OSError as error:
        raise TraceError(f"{Where(path)}: can't be read: {error.strerror or error}.") from None
    except Exception as error:  # noqa: BLE001  np.load raises whatever its parser of headers meets
        raise TraceError(f"{Where(path)}: no array of numbers that can be read without pickle: {error}.") from None


def _slots(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Leaves by slot, of lists and mappings of them."""
    if isinstance(value, dict) and "type" in value:
        return [("0", value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    slots: list[tuple[str, dict[str, Any]]] = []
    for key, item in items:
        if isinstance(item, dict) and "type" in item:
            slots.append((str(key), item))
        else:
            slots += [(f"{key}.{slot}", leaf) for slot, leaf in _slots(item)]
    return slots
