"""Reads routes that an engine recorded, in the forms that engines write; no pickle, no weights needed.

A file is `*.jsonl` (a sequence or a response per line), `*.npy`, or else safetensors; `docs/flips.md` lists the forms.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moeparity import paths
from moeparity.errors import TokensError, Where, did_you_mean, listed, shown, whole_number
from moeparity.inputs.tokens.tokenset import check_routes, nested_routes, routed_layers

_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin")
_INTEGERS = {
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "uint16": np.uint16,
    "int32": np.int32,
    "int64": np.int64,
}
_WHOLE = ("input_ids", "prompt_token_ids", "prompt_ids")
_COMPLETION = ("output_ids", "token_ids", "generation_token_ids")
_NEMO = "nrlre1:"
"""The beginning of NeMo Gym's strings, before `dtype:SxLxK:base64`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRoutes:
    """The routes of one sequence: int64 [rows, MoE layers, K], -1 for a token without routes.

    id: the sequence's name in the file, None without one. tokens: `sequence` or `completion` -> token ids. layers: the
    index of each MoE layer among the recorded layers, which may include dense ones.
    """

    where: Where
    id: str | None
    routes: Tensor
    tokens: Mapping[str, tuple[int, ...]]
    layers: tuple[int, ...] = ()


def read_routes(path: Path, *, top_k: int | None = None) -> list[RecordedRoutes]:
    """The routes in a file, in order.

    top_k: tells the layers apart if an engine writes rows of layers x top_k numbers without a shape (SGLang). Raises
    TokensError.
    """
    where = Where(path)
    if not paths.present(path):
        raise TokensError(f"{where}: no such file of recorded routes. Check the path.")
    if path.suffix in _PICKLED:
        raise TokensError(
            f"{where}: a pickle, which can run any code, is not read. Write routed_experts with numpy.save (*.npy), "
            "safetensors or JSON lines."
        )
    if path.suffix == ".jsonl":
        sequences = [sequence for at, line in _lines(path) for sequence in _of_line(at, line, top_k)]
    elif path.suffix == ".npy":
        sequences = _of_block(where, _npy(where, _bytes(path)), {})
    else:
        sequences = _of_tensors(where, path)
    if not sequences:
        raise TokensError(f"{where}: holds no routes. Expected at least one sequence with routed_experts.")
    return [_without_dense_layers(sequence) for sequence in sequences]


def _without_dense_layers(sequence: RecordedRoutes) -> RecordedRoutes:
    """The routes, checked and without layers that have no router."""
    routes, layers = routed_layers(sequence.where, sequence.routes)
    check_routes(sequence.where, routes)
    return replace(sequence, routes=routes, layers=layers)


def _bytes(path: Path) -> bytes:
    try:
        return paths.contents(path, "file of recorded routes")
    except OSError as error:
        raise TokensError(f"{Where(path)}: cannot be read: {error.strerror}.") from None


def _lines(path: Path) -> list[tuple[Where, dict[str, Any]]]:
    try:
        text = _bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokensError(f"{Where(path)}: not JSON lines: byte {error.start} is not UTF-8.") from None
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        where = Where(path, number)
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise TokensError(f"{where}: not JSON. Expected one sequence or response per line.") from None
        if not isinstance(record, dict):
            raise TokensError(f"{where}: {shown(record)} is no sequence; expected an object with routed_experts.")
        records.append((where, record))
    return records


def _of_line(where: Where, record: dict[str, Any], top_k: int | None) -> list[RecordedRoutes]:
    """The sequences of a line: a record of moeparity, or an engine's response with `choices` (vLLM) or `meta_info`
    (SGLang).
    """
    choices, meta = record.get("choices"), record.get("meta_info")
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        # The request's prompt is beside its choices.
        prompt = {key: record[key] for key in ("prompt_token_ids",) if key in record}
        return [_record(where, {**prompt, **choice}, None, top_k) for choice in choices]
    if isinstance(meta, dict):
        return [_record(where, {**meta, **record}, None, top_k)]
    name = record.get("id")
    if name is not None and type(name) not in {str, int}:
        raise TokensError(f"{where}: id is {shown(name)}; expected a word or a whole number.")
    return [_record(where, record, None if name is None else str(name), top_k)]


def _record(where: Where, record: Mapping[str, Any], name: str | None, top_k: int | None) -> RecordedRoutes:
    data = record.get("routed_experts")
    if data is None:
        raise TokensError(
            f"{where}: no routed_experts. Ask the engine for them: return_routed_experts in SGLang, "
            "--enable-return-routed-experts in vLLM."
        )
    tokens = _tokens(where, record)
    counts = record.get("prompt_tokens"), record.get("completion_tokens")
    count = counts[0] + counts[1] if type(counts[0]) is int and type(counts[1]) is int else None
    count = len(tokens["sequence"]) if "sequence" in tokens else count
    routes = decode(where, data, None if count is None else count - 1, top_k)
    if count is not None and len(routes) not in {count, count - 1}:
        raise TokensError(
            f"{where}: routed_experts has {len(routes)} rows; expected one for each of {count} tokens, or for all but "
            "the last."
        )
    if count is not None and len(routes) < count:
        routes = torch.cat([routes, routes.new_full((1, *routes.shape[1:]), -1)])
    return RecordedRoutes(where=where, id=name, routes=routes, tokens=tokens)


def _tokens(where: Where, record: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    lists = {key: record[key] for key in (*_WHOLE, *_COMPLETION) if record.get(key) is not None}
    for key, ids in lists.items():
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise TokensError(f"{where}: {key} is no list of token ids; expected whole numbers.")
    prompt = next((lists[key] for key in _WHOLE if key in lists), None)
    completion = next((lists[key] for key in _COMPLETION if key in lists), None)
    if prompt is None:
        return {} if completion is None else {"completion": tuple(completion)}
    if completion is None or "input_ids" in lists:
        return {"sequence": tuple(prompt)} if "input_ids" in lists else {}
    return {"sequence": (*prompt, *completion)}


def decode(where: Where, value: Any, rows: int | None, top_k: int | None) -> Tensor:
    """routed_experts in any form that engines write -> int64 [rows, layers, K].

    rows, top_k: tell the axes apart if there are only numbers. Raises TokensError.
    """
    if isinstance(value, list):
        return nested_routes(where, value)
    if isinstance(value, dict):
        return _from_envelope(where, value)
    if not isinstance(value, str):
        raise TokensError(f"{where}: routed_experts is {shown(value)}; expected lists, base64, or data with a shape.")
    if value.startswith(_NEMO):
        return _nemo(where, value)
    data = _base64(where, value)
    if data.startswith(b"\x93NUMPY"):
        return _rank_three(where, _npy(where, data))
    return _flat(where, data, rows, top_k)


def _from_envelope(where: Where, envelope: Mapping[str, Any]) -> Tensor:
    """{data, shape, dtype, start}, the form in which prime-rl has vLLM answer."""
    data, shape, start = envelope.get("data"), envelope.get("shape"), envelope.get("start", 0)
    if not isinstance(data, str) or not isinstance(shape, list) or not all(type(n) is int for n in shape):
        raise TokensError(f"{where}: routed_experts is a mapping without data and shape; expected base64 and a list.")
    if start != 0:
        raise TokensError(
            f"{where}: routed_experts starts at row {shown(start)}; expected all rows from 0. Record without a prefix "
            "cache."
        )
    return _raw(where, _base64(where, data), shape, envelope.get("dtype"))


def _nemo(where: Where, text: str) -> Tensor:
    parts = text.removeprefix(_NEMO).split(":", 2)
    extents = [whole_number(word) for word in parts[1].split("x")] if len(parts) == 3 else []
    shape = [extent for extent in extents if extent is not None]
    if not shape or len(shape) != len(extents):
        raise TokensError(f"{where}: routed_experts {shown(text[:40])} is not {_NEMO}<dtype>:<S>x<L>x<K>:<base64>.")
    return _raw(where, _base64(where, parts[2]), shape, parts[0])


def _raw(where: Where, data: bytes, shape: list[int], dtype: Any) -> Tensor:
    """Raw numbers; without a dtype their width follows from the shape."""
    count = math.prod(shape) if shape else 0
    if dtype is None:
        dtype = {1: "uint8", 2: "uint16", 4: "int32", 8: "int64"}.get(len(data) // count if count else 0)
    kind = _INTEGERS.get(str(dtype))
    if kind is None:
        near = did_you_mean(str(dtype), _INTEGERS)
        raise TokensError(
            f"{where}: routed_experts has dtype {shown(dtype)}; expected one of {listed(_INTEGERS)}.{near}"
        )
    if len(data) != count * np.dtype(kind).itemsize:
        raise TokensError(
            f"{where}: routed_experts holds {len(data)} bytes; shape {shape} of {dtype} takes "
            f"{count * np.dtype(kind).itemsize}."
        )
    return _rank_three(where, np.frombuffer(data, dtype=np.dtype(kind).newbyteorder("<")).reshape(shape))


def _flat(where: Where, data: bytes, rows: int | None, top_k: int | None) -> Tensor:
    """int32 without a shape, in rows of layers x top_k, as SGLang answers."""
    count, odd_bytes = divmod(len(data), 4)
    if top_k is None:
        raise TokensError(f"{where}: routed_experts is {count} numbers without a shape. Give --top-k.")
    if rows is None or rows < 1:
        raise TokensError(
            f"{where}: routed_experts is {count} numbers without a shape, and the line does not say of how many "
            "tokens; expected meta_info with prompt_tokens and completion_tokens."
        )
    layers, odd = divmod(count, rows * top_k)
    if odd_bytes or odd or not layers:
        raise TokensError(
            f"{where}: routed_experts holds {len(data)} bytes, which are no layers of {rows} tokens x top {top_k} in "
            "int32. Check --top-k."
        )
    return _raw(where, data, [rows, layers, top_k], "int32")


def _base64(where: Where, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise TokensError(f"{where}: routed_experts is not base64: {shown(text[:40])}.") from None


def _npy(where: Where, data: bytes) -> np.ndarray[Any, Any]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        reason = "it holds pickled objects" if "allow_pickle" in str(error) else str(error).splitlines()[0]
        raise TokensError(f"{where}: not a *.npy array of numbers: {reason}.") from None
    if not isinstance(array, np.ndarray):
        raise TokensError(f"{where}: not one array; expected what numpy.save writes.")
    return array


def _rank_three(where: Where, array: np.ndarray[Any, Any]) -> Tensor:
    return _of_array(where, array, (3,))


def _of_array(where: Where, array: np.ndarray[Any, Any], ranks: tuple[int, ...]) -> Tensor:
    if array.dtype.kind not in "iu" or array.ndim not in ranks or not array.size:
        shapes = "[tokens, layers, top_k]" + (" or [sequences, tokens, layers, top_k]" if 4 in ranks else "")
        raise TokensError(f"{where}: routed_experts is {array.dtype} {list(array.shape)}; expected integers {shapes}.")
    return torch.from_numpy(array.astype(np.int64))


def _of_block(where: Where, array: np.ndarray[Any, Any], tokens: Mapping[int, tuple[int, ...]]) -> list[RecordedRoutes]:
    """[sequences, tokens, layers, K], or one sequence without the first axis."""
    routes = _of_array(where, array, (3, 4))
    block = routes.unsqueeze(0) if routes.dim() == 3 else routes
    return [
        RecordedRoutes(where=where, id=None, routes=sequence, tokens={"sequence": tokens[i]} if i in tokens else {})
        for i, sequence in enumerate(block)
    ]


def _of_tensors(where: Where, path: Path) -> list[RecordedRoutes]:
    """The routes in a safetensors file: `routed_experts`, with `input_ids` and `attention_mask` if it has them."""
    try:
        paths.measured(path, "file of recorded routes")
        with safe_open(str(path), framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0][:200]
        raise TokensError(
            f"{where}: not a safetensors file ({reason}). Expected *.jsonl, *.npy, or safetensors with routed_experts."
        ) from None
    if "routed_experts" not in tensors:
        raise TokensError(f"{where}: holds no routed_experts; it has {listed(tensors)}.")
    routes, ids, mask = (tensors.get(key) for key in ("routed_experts", "input_ids", "attention_mask"))
    assert routes is not None, "just looked for"
    if routes.is_floating_point() or routes.is_complex() or routes.dtype == torch.bool:
        raise TokensError(f"{where}: routed_experts is {routes.dtype}; expected integers.")
    if ids is not None and ids.shape != routes.shape[:2]:
        raise TokensError(
            f"{where}: input_ids is {list(ids.shape)}; expected {list(routes.shape[:2])}, as routed_experts."
        )
    if mask is not None and mask.shape == routes.shape[:2]:
        routes = routes.to(torch.int64).masked_fill(~mask.bool()[..., None, None], -1)
    tokens = {} if ids is None else {i: tuple(row) for i, row in enumerate(ids.tolist())}
    return _of_block(where, routes.to(torch.int64).numpy(), tokens)
