"""moeparity's own format as safetensors: the keys of `own` as blocks [B, T], read a row at a time.

Sequences of unequal length are padded at the right, which `attention_mask` tells; NaN stands for no log-probability, -1
for no version and no route. What is said of a sequence as a whole is [B] (`step`, `prompt_tokens`, `trainer_version`),
or a JSON list under the metadata's `ids` and `labels`; `sampling_params` there holds for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moeparity.errors import LogError, TokensError, Where, did_you_mean, listed
from moeparity.inputs.tokens.tokenset import check_routes
from moeparity.logs.formats.fields import Address, Fields
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.formats.own import PER_TOKEN, ROUTES, sequence
from moeparity.logs.record import Sequence

_WHOLE = ("step", "prompt_tokens", "trainer_version")
KEYS = ("input_ids", "loss_mask", "attention_mask", "versions", *_WHOLE, *PER_TOKEN, *ROUTES)


class TensorFile:
    """The rows of a file, each read by itself. Raises LogError."""

    def __init__(self, path: Path) -> None:
        self.where = Where(path)
        self._file = _open(path)
        self._shapes = {key: self._file.get_slice(key).get_shape() for key in self._file.keys()}  # noqa: SIM118
        self._check_keys()
        self._count = self._shapes["input_ids"][0]
        metadata = self._file.metadata() or {}
        self._ids = self._words(metadata, "ids") or [str(row) for row in range(self._count)]
        self._labels = self._words(metadata, "labels")
        self._sampling = self._json(metadata, "sampling_params")

    def records(self) -> Iterator[tuple[Address, Fields]]:
        """All rows, in order."""
        for row in range(self._count):
            yield (row,), self.at((row,))

    def at(self, address: Address) -> Fields:
        """One row, padded."""
        (row,) = address
        values: dict[str, Any] = {key: self._file.get_slice(key)[row] for key in self._shapes}
        label = None if self._labels is None else self._labels[row]
        return Fields(self.where, {**values, "id": self._ids[row], "labels": label, "sampling_params": self._sampling})

    def _check_keys(self) -> None:
        for key in self._shapes:
            if key not in KEYS:
                raise LogError(
                    f"{self.where}: unknown tensor {key!r}; expected one of {listed(KEYS)}.{did_you_mean(key, KEYS)}"
                )
        block = self._shapes.get("input_ids", [])
        if len(block) != 2 or not all(block):
            raise LogError(f"{self.where}: input_ids is {block or 'missing'}; expected [sequences, tokens], not empty.")
        for key, shape in self._shapes.items():
            expected = block[:1] if key in _WHOLE else block
            if shape[: len(expected)] != expected or (key not in ROUTES and len(shape) != len(expected)):
                raise LogError(f"{self.where}: {key} is {shape}; expected {expected}, as input_ids.")

    def _json(self, metadata: dict[str, str], key: str) -> Any:
        try:
            return json.loads(metadata.get(key, "null"))
        except (ValueError, RecursionError):
            raise LogError(f"{self.where}: metadata {key!r} is not JSON.") from None

    def _words(self, metadata: dict[str, str], key: str) -> list[str] | None:
        words = self._json(metadata, key)
        if words is None:
            return None
        if not isinstance(words, list) or len(words) != self._count or not all(isinstance(word, str) for word in words):
            raise LogError(f"{self.where}: metadata {key!r} is no JSON list of {self._count} words, one per sequence.")
        return words


def _open(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise LogError(f"{Where(path)}: not a whole safetensors file: {str(error).splitlines()[0][:200]}.") from None


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequence of a row, without its padding. Raises LogError."""
    padded = fields.length("input_ids")
    attended = fields.mask("attention_mask", padded) if fields.has("attention_mask") else None
    size = padded if attended is None else int(attended.sum())
    if not size or (attended is not None and not bool(attended[:size].all())):
        raise LogError(
            f"{fields.where}: attention_mask of row {fields.need('id')} is empty or holed. Pad at the right."
        )
    mask = fields.mask("loss_mask", padded) if fields.has("loss_mask") else torch.ones(size, dtype=torch.bool)
    if bool(mask[size:].any()):
        raise LogError(f"{fields.where}: loss_mask of row {fields.need('id')} scores padding.")
    columns = {name: fields.floats(key, padded)[:size] for key, name in PER_TOKEN.items() if fields.has(key)}
    return [
        sequence(
            fields,
            ids=fields.tokens("input_ids")[:size],
            mask=mask[:size],
            columns=columns,
            versions=fields.integers("versions", padded)[:size] if fields.has("versions") else None,
            routes={key: _routes(fields, key)[:size] for key in ROUTES if fields.has(key)},
            group=fields.optional_word("labels"),
        )
    ]


def _routes(fields: Fields, key: str) -> Tensor:
    routes = fields.need(key)
    if routes.is_floating_point() or routes.dim() != 3 or not routes.numel():
        raise LogError(f"{fields.where}: {key} is no block of whole numbers [B, T, MoE layers, top_k].")
    ids: Tensor = routes.to(torch.int64)
    try:
        check_routes(fields.where, ids)
    except TokensError as error:
        raise LogError(str(error)) from None
    return ids


FORMAT = Format(
    name="moeparity-safetensors",
    producer="moeparity's own format as safetensors",
    container="safetensors",
    claims=lambda record: "input_ids" in record,
    read=read,
    source="docs/logs.md",
    fixture="made by moeparity",
)
