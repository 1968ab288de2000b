"""moeparity's own format, for logs of any framework: the keys of a token file, and some that only logs need.

JSON lines and parquet have one sequence per line or row. safetensors has the same keys as blocks [B, T], read a row at
a time; sequences are padded on the right, as `attention_mask` says. NaN stands for no log-probability, -1 for no
version and no route. Values of a sequence as a whole are [B] (`step`, `prompt_tokens`, `trainer_version`), or JSON
lists in the metadata (`ids`, `labels`); `sampling_params` in the metadata holds for all sequences. docs/logs.md lists
the keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moeparity.errors import LogError, TokensError, Where, counted, did_you_mean, listed, shown
from moeparity.inputs.tokens.pads import Pads, pads
from moeparity.inputs.tokens.tokenset import check_routes, nested_routes
from moeparity.logs.formats import further, served
from moeparity.logs.formats.fields import Address, Fields
from moeparity.logs.formats.format import Format, Role, Unreadable
from moeparity.logs.record import Sequence

PER_TOKEN = {
    "logprobs": "rollout",
    "trainer_logprobs": "trainer",
    "entropy": "entropy",
    "ref_logprobs": "ref",
    "current_logprobs": "current",
    "advantages": "advantages",
}
"""Keys of lists of floats -> the field that they fill."""
ROUTES = ("routed_experts", "trainer_routed_experts")
SIDES = ("", "trainer_")
"""Before the names of what each side may have beside log-probabilities and routes."""
LISTS = tuple(f"{side}{key}" for side in SIDES for key in (further.TOP_LOGPROBS, further.HIDDEN))
WHOLE = ("id", "prompt_tokens", "step", "trainer_version", "labels", "sampling_params", "request", "grammar", "pads")
KEYS = (*WHOLE, "input_ids", "mask", "versions", *PER_TOKEN, *ROUTES, *LISTS)


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is of this format."""
    return (
        "input_ids" in record and ("logprobs" in record or "trainer_logprobs" in record) and "meta_info" not in record
    )


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequence of a record. Raises LogError."""
    fields.only(KEYS)
    ids = fields.tokens("input_ids")
    size = len(ids)
    mask = fields.mask("mask", size) if fields.has("mask") else torch.ones(size, dtype=torch.bool)
    columns = {name: fields.floats(key, size) for key, name in PER_TOKEN.items() if fields.has(key)}
    label, classes = _labels(fields, size)
    return [
        sequence(
            fields,
            ids=ids,
            mask=mask,
            columns=columns,
            versions=fields.integers("versions", size) if fields.has("versions") else None,
            deep={
                **{key: _routes(fields, key, size) for key in ROUTES if fields.has(key)},
                **{name: column for side in SIDES for name, column in _further(fields, side, size).items()},
            },
            group=label,
            classes=classes,
        )
    ]


def _labels(fields: Fields, size: int) -> tuple[str | None, tuple[str, ...] | None]:
    """The word for the sequence, or one for each of its `size` tokens."""
    labels = fields.values.get("labels")
    if labels is None or isinstance(labels, str):
        return labels, None
    if not isinstance(labels, list) or len(labels) != size or not all(isinstance(word, str) for word in labels):
        raise LogError(
            f"{fields.where}: labels is {shown(labels)}; expected one word for the sequence, or one for each of its "
            f"{counted(size, 'token')}."
        )
    return None, tuple(labels)


def sequence(
    fields: Fields,
    *,
    ids: Tensor,
    mask: Tensor,
    columns: dict[str, Tensor],
    versions: Tensor | None,
    deep: dict[str, Tensor],
    group: str | None,
    classes: tuple[str, ...] | None = None,
) -> Sequence:
    """A sequence made of columns that were read and of what `fields` says of the sequence as a whole. deep: columns
    with several numbers for each token.
    """
    prompt = fields.optional_whole("prompt_tokens")
    if prompt is not None and prompt > len(ids):
        raise LogError(f"{fields.where}: prompt_tokens is {prompt}; the sequence has {len(ids)} tokens.")
    if prompt != 0:
        mask = mask.clone()
        mask[0] = False
    sides = {name: columns.pop(name, None) for name in ("rollout", "trainer", "entropy")}
    return Sequence(
        id=fields.word("id"),
        where=fields.where,
        token_ids=ids,
        mask=mask,
        rollout=sides["rollout"],
        trainer=sides["trainer"],
        entropy=sides["entropy"],
        prompt=prompt,
        step=fields.optional_whole("step"),
        versions=versions,
        trainer_version=fields.optional_whole("trainer_version"),
        sampling=served.sampling(fields),
        request=served.request_fields(fields),
        grammar=_grammar(fields, len(ids)),
        group=group,
        classes=classes,
        pads=_pads(fields),
        extra={**columns, **deep},
    )


def _grammar(fields: Fields, size: int) -> tuple[Any, ...] | None:
    if not fields.has("grammar"):
        return None
    entries = fields.entries("grammar")
    if len(entries) != size:
        raise LogError(f"{fields.where}: grammar has {len(entries)} entries; expected one for each of {size} tokens.")
    return tuple(entries)


def _pads(fields: Fields) -> Pads | None:
    try:
        return pads(fields.need("pads")) if fields.has("pads") else None
    except ValueError as error:
        raise LogError(f"{fields.where}: pads is {shown(fields.need('pads'))}; {error}.") from None


def _routes(fields: Fields, key: str, size: int) -> Tensor:
    rows = fields.need(key)
    if not isinstance(rows, list) or len(rows) != size:
        count = f"{len(rows)} rows" if isinstance(rows, list) else shown(rows)
        raise LogError(f"{fields.where}: {key} is {count}; expected a row for each of {size} tokens, null for none.")
    try:
        routes = nested_routes(fields.where, rows)
        check_routes(fields.where, routes)
    except TokensError as error:
        raise LogError(str(error)) from None
    return routes


def _further(fields: Fields, side: str, size: int) -> dict[str, Tensor]:
    """The columns of `formats.further` of a side, by their names in `Sequence.extra`."""
    columns: dict[str, Tensor] = {}
    key = f"{side}{further.TOP_LOGPROBS}"
    if fields.has(key):
        rows = _rows(fields, key, size)
        if not all(row is None or _is_pairs(row) for row in rows):
            raise LogError(f"{fields.where}: {key} holds something else than lists of [token id, log-probability].")
        tops = further.top_k(fields, key, [[(token, value) for token, value in row or ()] for row in rows])
        columns |= {f"{side}{name}": column for name, column in tops.items()}
    key = f"{side}{further.HIDDEN}"
    if fields.has(key):
        columns[key] = further.per_token(fields, key, _rows(fields, key, size))
    return columns


def _rows(fields: Fields, key: str, size: int) -> list[Any]:
    rows = fields.entries(key)
    if len(rows) != size:
        raise LogError(f"{fields.where}: {key} has {len(rows)} rows; expected one for each of {size} tokens, or null.")
    return rows


def _is_pairs(row: Any) -> bool:
    return isinstance(row, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in row)


FORMAT = Format(
    name="moeparity",
    producer="moeparity's own JSON lines",
    container="json",
    claims=claims,
    read=read,
    source="docs/logs.md",
    fixture="made by moeparity",
)
VERL = Unreadable(
    name="verl's rollout JSONL",
    claims=lambda record: {"input", "output", "score"} <= set(record),
    reason="holds text but neither log-probabilities nor token ids. docs/logs.md has the lines that write a DataProto "
    "as moeparity's own format.",
)


_PER_SEQUENCE = ("step", "prompt_tokens", "trainer_version")
_DEEP = (*ROUTES, *(f"{side}{name}" for side in SIDES for name in further.FURTHER))
"""Blocks with several numbers for each token."""
TENSOR_KEYS = ("input_ids", "loss_mask", "attention_mask", "versions", *_PER_SEQUENCE, *PER_TOKEN, *_DEEP)


class TensorFile:
    """The rows of a safetensors file, read one at a time. Raises LogError."""

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
            if key not in TENSOR_KEYS:
                raise LogError(
                    f"{self.where}: unknown tensor {key!r}; expected one of {listed(TENSOR_KEYS)}."
                    f"{did_you_mean(key, TENSOR_KEYS)}"
                )
        block = self._shapes.get("input_ids", [])
        if len(block) != 2 or not all(block):
            raise LogError(f"{self.where}: input_ids is {block or 'missing'}; expected [sequences, tokens], not empty.")
        for key, shape in self._shapes.items():
            expected = block[:1] if key in _PER_SEQUENCE else block
            if shape[: len(expected)] != expected or (key not in _DEEP and len(shape) != len(expected)):
                raise LogError(f"{self.where}: {key} is {shape}; expected {expected}, as input_ids.")
        for key in (f"{side}{further.TOP_LOGPROBS}" for side in SIDES):
            ids = key.replace(further.TOP_LOGPROBS, further.TOP_IDS)
            if self._shapes.get(key) != self._shapes.get(ids):
                raise LogError(
                    f"{self.where}: {key} is {self._shapes.get(key, 'missing')}, and {ids} "
                    f"{self._shapes.get(ids, 'missing')}; expected both, of one shape."
                )

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


def read_row(fields: Fields, role: Role) -> list[Sequence]:
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
            deep={
                **{key: _tensor_routes(fields, key)[:size] for key in ROUTES if fields.has(key)},
                **{key: _tensor_rows(fields, key)[:size] for key in _DEEP if key not in ROUTES and fields.has(key)},
            },
            group=fields.optional_word("labels"),
        )
    ]


def _tensor_routes(fields: Fields, key: str) -> Tensor:
    routes = fields.need(key)
    if routes.is_floating_point() or routes.dim() != 3 or not routes.numel():
        raise LogError(f"{fields.where}: {key} is no block of whole numbers [B, T, MoE layers, top_k].")
    ids: Tensor = routes.to(torch.int64)
    try:
        check_routes(fields.where, ids)
    except TokensError as error:
        raise LogError(str(error)) from None
    return ids


def _tensor_rows(fields: Fields, key: str) -> Tensor:
    rows: Tensor = fields.need(key)
    is_ids = key.endswith(further.TOP_IDS)
    if rows.dim() != 2 or not rows.shape[1] or rows.is_complex() or rows.is_floating_point() == is_ids:
        kind = "whole numbers" if is_ids else "floats"
        raise LogError(f"{fields.where}: {key} is no block of {kind} [B, T, {'H' if 'hidden' in key else 'K'}].")
    if key.endswith(further.TOP_LOGPROBS):
        return further.checked_logprobs(fields, key, rows.double())
    return further.checked_ids(fields, key, rows.long()) if is_ids else rows.float()


TENSORS = Format(
    name="moeparity-safetensors",
    producer="moeparity's own format as safetensors",
    container="safetensors",
    claims=lambda record: "input_ids" in record,
    read=read_row,
    source="docs/logs.md",
    fixture="made by moeparity",
)
