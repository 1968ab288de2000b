"""SGLang's dumper: a `.pt` file for each tensor, its tags in the name.

Written by `_Dumper._dump_single` (SGLang 0.5.23, srt/debug_utils/dumper.py): the name is `step=S___rank=R___
dump_index=I___name=N` with further tags, the file {"value": tensor, "meta": {...}}. Hooks on modules call their tensors
`non_intrusive__PATH.inputs.SLOT` and `non_intrusive__PATH.output[.SLOT]`; fields of the batch have their plain names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moeparity.errors import TraceError, Where
from moeparity.evidence.importers.assembled import Event, is_tensor, write_trace
from moeparity.evidence.importers.files import read_pt
from moeparity.evidence.trace.records import Head

_PREFIX = "non_intrusive__"
_HOOKED = re.compile(r"(?P<path>.*?)\.?(?P<role>inputs|output)(?:\.(?P<slot>[^.]+))?")
_FIELDS = {"input_ids", "positions", "seq_lens", "req_pool_indices", "rids", "cu_seqlens_q", "cu_seqlens_kv"}
"""Of the batch, given to the outermost module (`core_fields` of the dumper's plugins)."""

Tags = Mapping[str, str]


def import_sglang(path: Path, out: Path) -> None:
    """The folder of one experiment (DUMPER_DIR/DUMPER_EXP_NAME). Raises TraceError."""
    files = sorted(path.glob("*.pt"))
    if not files:
        raise TraceError(f"{Where(path)}: no *.pt file; expected a folder of SGLang's dumper, DIR/EXP_NAME.")
    by_rank: dict[int, list[tuple[Tags, Path]]] = {}
    for file in files:
        tags = _tags(file)
        by_rank.setdefault(int(tags["rank"]), []).append((tags, file))
    for rank, dumped in by_rank.items():
        dumped.sort(key=lambda entry: (int(entry[0]["step"]), int(entry[0]["dump_index"])))
        skipped: list[str] = []
        events = list(_events(dumped, skipped))
        notes = [f"{len(skipped)} files hold no tensor and were left out, such as {skipped[0]}."] if skipped else []
        lost = _lost(dumped)
        if lost:
            notes.append(f"{lost} of the dumper's calls left no file: what they held is not here.")
        head = Head(rank=rank, ranks=len(by_rank), made_by="SGLang's dumper", levels=("module",))
        write_trace(out, head, events, notes, whole=not lost)


def _lost(dumped: Iterable[tuple[Tags, Path]]) -> int:
    """How many numbers of dumps have no file, between the first and the last: the dumper counts every call."""
    numbers = {int(tags["dump_index"]) for tags, _ in dumped}
    return max(numbers) - min(numbers) + 1 - len(numbers)


def _tags(file: Path) -> Tags:
    tags = dict(part.partition("=")[::2] for part in file.name.removesuffix(".pt").split("___"))
    is_tagged = all(tags.get(key, "").isdecimal() for key in ("step", "rank", "dump_index"))
    if not is_tagged or "name" not in tags:
        raise TraceError(
            f"{Where(file)}: the name says no step, rank, dump_index and name, as those of SGLang's dumper do: "
            "step=0___rank=0___dump_index=1___name=NAME.pt."
        )
    return tags


def _events(dumped: Iterable[tuple[Tags, Path]], skipped: list[str]) -> Iterator[Event]:
    """Calls of modules, with what was dumped of each; an outermost call around each step's has the batch's fields."""
    steps: dict[int, Event] = {}
    current: dict[tuple[int, str], Event] = {}
    for tags, file in dumped:
        value = _value(file)
        if not is_tensor(value):
            skipped.append(file.name)
            continue
        step, index = int(tags["step"]), int(tags["dump_index"])
        top = steps.setdefault(
            step, Event(level="module", name="forward", path="", first=index - 1, last=index, step=step)
        )
        top.last = index + 1
        path, role, slot = _place(tags)
        if path is None:
            top.inputs.setdefault(slot, value)
            continue
        event = top if not path else current.get((step, path))
        slots = None if event is None else event.outputs if role == "output" else event.inputs
        if event is None or (path and (slot in (slots or {}) or (role == "inputs" and event.outputs))):
            event = Event(level="module", name="module", path=path, first=index, last=index, step=step)
            current[step, path] = event
            yield event
        (event.outputs if role == "output" else event.inputs)[slot] = value
        event.last = max(event.last, index)
    yield from steps.values()


def _place(tags: Tags) -> tuple[str | None, str, str]:
    """Module path, inputs or output, and slot of a dumped tensor; no path for a field of the batch."""
    name = tags["name"]
    if name.startswith(_PREFIX):
        match = _HOOKED.fullmatch(name.removeprefix(_PREFIX))
        if match is not None:
            return match["path"], match["role"], match["slot"] or "0"
    if name in _FIELDS:
        return None, "inputs", name
    layer = tags.get("layer_id", "None")
    return (f"layers.{layer}.{name}" if layer.isdecimal() else name), "output", "0"


def _value(file: Path) -> Any:
    document = read_pt(file)
    if not isinstance(document, dict) or "value" not in document:
        raise TraceError(f"{Where(file)}: expected a mapping with `value` and `meta`, as SGLang's dumper saves it.")
    return document["value"]
