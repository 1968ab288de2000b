"""A census as it is written beside fingerprints of weights: a JSON document, and the sums that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import torch

from moeparity.evidence.census.census import Census, Entry
from moeparity.evidence.census.forms import FORMS, Making
from moeparity.evidence.census.lanes import Lanes
from moeparity.evidence.census.origins import Origin
from moeparity.evidence.census.walk import TensorKind

_PLAIN = (
    "path", "kind", "module", "dtype", "shape", "device", "address", "storage", "others", "twins", "bits", "unread",
    "view_of",
)  # fmt: skip


def document(census: Census) -> tuple[dict[str, Any], torch.Tensor]:
    """The census as JSON, and its sums, int64, in the order in which the document names them."""
    sums: list[torch.Tensor] = []
    makings = list(census.values)
    places = {making: place for place, making in enumerate(makings)}
    values = []
    for making in makings:
        lanes = census.values[making].sums
        sums += lanes.values()
        axes = {str(axis): len(lane) for axis, lane in lanes.items()}
        values.append({"form": making.form, "sources": making.sources, "dtype": making.dtype, "sizes": making.sizes,
                       "lanes": axes})  # fmt: skip
    entries = []
    for entry in census.entries.values():
        head = {name: getattr(entry, name) for name in _PLAIN}
        if entry.origin is not None and entry.lanes is not None and all(m in places for m in entry.origin.makings):
            head["origin"] = {"makings": [places[making] for making in entry.origin.makings], "axis": entry.origin.axis,
                              "repeated": entry.origin.repeated, "alternatives": entry.origin.alternatives,
                              "lanes": len(entry.lanes)}  # fmt: skip
            sums.append(entry.lanes)
        entries.append(head)
    plain = {"process": census.process, "graphs": census.graphs, "unseen": census.unseen}
    joined = torch.cat(sums) if sums else torch.zeros(0, dtype=torch.int64)
    return {**plain, "values": values, "entries": entries}, joined


def census_of(head: Mapping[str, Any], sums: torch.Tensor) -> Census:
    """The census of a document; raises KeyError, TypeError or ValueError where it is none, or does not fit its sums."""
    parts = _Parts(sums)
    values: dict[Making, Lanes] = {}
    for value in head["values"]:
        making = Making(str(value["form"]), _texts(value["sources"]), str(value["dtype"]), _numbers(value["sizes"]))
        if making.form not in FORMS:
            raise ValueError(making.form)
        values[making] = Lanes({int(axis): parts.next(int(count)) for axis, count in value["lanes"].items()})
    entries = {entry.path: entry for entry in _entries(head["entries"], list(values), parts)}
    if len(values) != len(head["values"]) or not parts.is_used_up:
        raise ValueError
    return Census(
        process=str(head["process"]),
        entries=entries,
        values=values,
        graphs={str(path): int(number) for path, number in head["graphs"].items()},
        unseen=_texts(head["unseen"]),
    )


class _Parts:
    """Sums that are taken one part after the other."""

    def __init__(self, sums: torch.Tensor) -> None:
        if sums.dtype != torch.int64 or sums.dim() != 1:
            raise ValueError
        self._sums, self._at = sums, 0

    def next(self, count: int) -> torch.Tensor:
        """The next so many."""
        self._at += count
        if count < 0 or self._at > len(self._sums):
            raise ValueError
        return self._sums[self._at - count : self._at]

    @property
    def is_used_up(self) -> bool:
        """Whether all were taken."""
        return self._at == len(self._sums)


def _entries(heads: Sequence[Mapping[str, Any]], makings: Sequence[Making], parts: _Parts) -> Iterator[Entry]:
    for head in heads:
        if head["kind"] not in get_args(TensorKind):
            raise ValueError
        described = head.get("origin")
        origin = None if described is None else Origin(
            makings=tuple(makings[int(place)] for place in described["makings"]), axis=int(described["axis"]),
            repeated=_numbers(described["repeated"]), alternatives=bool(described["alternatives"]),
        )  # fmt: skip
        yield Entry(
            path=str(head["path"]), kind=head["kind"], module=str(head["module"]), dtype=str(head["dtype"]),
            shape=_numbers(head["shape"]), device=str(head["device"]), address=int(head["address"]),
            storage=int(head["storage"]), others=int(head["others"]), twins=_texts(head["twins"]),
            bits=str(head["bits"]), unread=str(head["unread"]), view_of=str(head["view_of"]), origin=origin,
            lanes=None if described is None else parts.next(int(described["lanes"])),
        )  # fmt: skip


def _texts(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
