"""transformers' `model_addition_debugger_context`: a tree of module calls as JSON, whole tensors beside it.

Written by `log_model_debug_trace` (transformers 5.23.0, model_debugging_utils.py): CLASS_debug_tree_FULL_TENSORS.json,
each node {module_path, inputs, outputs, children}; with `use_repr=False` a tensor's `value` is the name of a file of
safetensors with the key `data`, else its printed digits, which are no bits. Outputs of modules with children are
pruned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeparity.errors import TraceError, Where, shown, whole_number
from moeparity.evidence.importers.assembled import Content, Described, Event, write_trace
from moeparity.evidence.importers.files import beside, read_json, read_safetensors
from moeparity.evidence.trace.records import Head
from moeparity.paths import is_file

_ENDING = "_debug_tree_FULL_TENSORS.json"
_NUMBER = re.compile(r"\d+")
UNSEEN = (
    "The debugger keeps what modules without children give, and what all are given.",
    "It prunes layers between the first and the last unless do_prune_layers=False.",
)


def import_transformers(path: Path, out: Path) -> None:
    """The folder `debug_path`, or its FULL_TENSORS.json. Raises TraceError."""
    files = [path] if is_file(path) else sorted(path.glob(f"*{_ENDING}"))
    if len(files) != 1:
        raise TraceError(
            f"{Where(path)}: {len(files)} files *{_ENDING}; expected one, as model_addition_debugger_context writes it."
        )
    tree = read_json(files[0], "the tree of transformers' debugger")
    if not isinstance(tree.get("module_path"), str):
        raise TraceError(f"{Where(files[0])}: no module_path; expected the tree of transformers' debugger.")
    reading = _Reading(files[0], tree["module_path"])
    events = list(reading.events(tree))
    write_trace(out, Head(made_by="transformers' debugger", levels=("module",), unseen=UNSEEN), events, reading.notes())


class _Reading:
    """One tree, as it is walked."""

    def __init__(self, file: Path, root: str) -> None:
        self._file, self._root = file, root
        self._clock = 0
        self._last: dict[str, dict[str, Content]] = {}
        self._places: dict[str, tuple[dict[str, Content], str]] = {}
        self._overwritten = self._printed = 0

    def events(self, node: Any) -> Iterator[Event]:
        """The call of a node and of those in it."""
        if not isinstance(node, dict) or not isinstance(node.get("module_path"), str):
            raise TraceError(f"{Where(self._file)}: a node without module_path; expected the tree of the debugger.")
        path = node["module_path"].removeprefix(self._root).removeprefix(".")
        event = Event(level="module", name="module", path=path, first=self._tick(), last=0)
        arguments = node.get("inputs") or {}
        for slot, value in _slots(arguments.get("args", []) if isinstance(arguments, dict) else []):
            self._take(event.inputs, slot, value)
        for slot, value in _slots(arguments.get("kwargs", {}) if isinstance(arguments, dict) else {}):
            self._take(event.inputs, slot, value)
        children = node.get("children") or []
        if not isinstance(children, list):
            raise TraceError(f"{Where(self._file)}: children of {event.path or 'the model'} are no list of nodes.")
        for child in children:
            yield from self.events(child)
        outputs = node.get("outputs")
        for slot, value in _slots([outputs] if _is_leaf(outputs) else outputs):
            self._take(event.outputs, slot, value)
        event.last = self._tick()
        yield event

    def notes(self) -> Iterator[str]:
        """What the files could not say."""
        if self._overwritten:
            yield (
                f"{self._overwritten} values were written over by a later call of the same module: only the last "
                "call's are known."
            )
        if self._printed:
            yield f"{self._printed} values were kept as printed digits, which are no bits: use_repr=False keeps them."

    def _take(self, slots: dict[str, Content], slot: str, leaf: dict[str, Any]) -> None:
        described = self._described(leaf)
        value = leaf.get("value")
        if not isinstance(value, str):
            self._printed += 1
            slots[slot] = described
            return
        if value in self._places:
            earlier, place = self._places[value]
            earlier[place] = described
            self._overwritten += 1
        self._places[value] = slots, slot
        file = beside(self._file.parent, value, "value")
        tensors = read_safetensors(file)
        if "data" not in tensors or tuple(tensors["data"].shape) != described.shape:
            raise TraceError(f"{Where(file)}: expected `data` of shape {list(described.shape)}.")
        slots[slot] = tensors["data"]

    def _described(self, leaf: dict[str, Any]) -> Described:
        sizes = [whole_number(digits) for digits in _NUMBER.findall(str(leaf["shape"]))]
        if None in sizes:
            raise TraceError(f"{Where(self._file)}: a value has shape {shown(leaf['shape'])}; expected a torch.Size.")
        return Described(str(leaf["dtype"]).removeprefix("torch."), tuple(size for size in sizes if size is not None))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def _is_leaf(value: Any) -> bool:
    return isinstance(value, dict) and {"shape", "dtype", "value"} <= value.keys()


def _slots(value: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensors of nested lists and mappings by slot: `0`, `hidden_states`, `0.1`."""
    if _is_leaf(value):
        yield prefix or "0", value
    elif isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _slots(item, f"{prefix}.{key}" if prefix else str(key))
