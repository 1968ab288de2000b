"""One spelling for everything that a call is given: canonical JSON for plain values, a manifest for tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

import torch

from moeparity.errors import RankError
from moeparity.evidence.trace.digest import row_digests


def canonical(value: object, where: str) -> str:
    """A plain value as JSON that does not depend on the order of keys: `{"b":1,"a":[nan]}` becomes
    `{"a":["nan"],"b":1}`.

    1, 1.0 and true stay different; NaN and infinities become words; enums, dtypes and devices become their names; sets
    are sorted. Raises RankError, which names `where`, for a value without such a spelling.
    """
    return json.dumps(_plain(value, where), sort_keys=True, separators=(",", ":"))


def flat(fields: Mapping[str, object], head: str) -> dict[str, str]:
    """Fields as `head.name`, also those of nested mappings, each in its canonical spelling."""
    spelled: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            spelled |= flat({str(key): item for key, item in value.items()}, f"{head}.{name}")
        else:
            spelled[f"{head}.{name}"] = canonical(value, f"{head}.{name}")
    return spelled


def manifest(tensors: Mapping[str, torch.Tensor], sample_bytes: int | None) -> dict[str, str]:
    """Shape, dtype and a digest of each tensor, as `tensors.NAME.bytes` and so on. The digest is of at most
    `sample_bytes` evenly spaced bytes (None: all).
    """
    digests = [row_digests(sampled(tensor, sample_bytes)[None]) for tensor in tensors.values()]
    numbers = [int(digest) & (2**64 - 1) for digest in digests]
    fields: dict[str, str] = {}
    for (name, tensor), number in zip(tensors.items(), numbers, strict=True):
        fields[f"tensors.{name}.shape"] = str(list(tensor.shape))
        fields[f"tensors.{name}.dtype"] = str(tensor.dtype).removeprefix("torch.")
        fields[f"tensors.{name}.bytes"] = f"{number:016x}"
    return fields


def sampled(tensor: torch.Tensor, sample_bytes: int | None) -> torch.Tensor:
    """The elements of a tensor, flattened; or evenly spaced ones of `sample_bytes` bytes, the last element included."""
    elements = tensor.detach().reshape(-1)
    if sample_bytes is None or elements.numel() * elements.element_size() <= sample_bytes:
        return elements
    count = max(2, sample_bytes // elements.element_size())
    places = torch.arange(count, device=elements.device) * (elements.numel() - 1) // (count - 1)
    return elements[places]


def digest(fields: Mapping[str, str]) -> str:
    """16 hexadecimal digits for canonical fields, independent of their order."""
    return blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()


def named_tensors(value: object, head: str = "") -> dict[str, torch.Tensor]:
    """The tensors in arguments, by where they are (`0`, `batch.input_ids`), sorted by key."""
    if isinstance(value, torch.Tensor):
        return {head or "0": value}
    if isinstance(value, Mapping):
        items = sorted((str(key), item) for key, item in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = [(str(place), item) for place, item in enumerate(value)]
    else:
        return {}
    return {
        name: tensor
        for key, item in items
        for name, tensor in named_tensors(item, f"{head}.{key}" if head else key).items()
    }


def _plain(value: object, where: str) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int | float):
        number = float(value)
        return number if number - number == 0 else str(number)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return sorted((_plain(item, where) for item in value), key=json.dumps)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    return _spelled(value, where)


def _spelled(value: object, where: str) -> Any:
    if isinstance(value, bytes):
        return f"bytes {blake2b(value, digest_size=8).hexdigest()}"
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), where)
    if isinstance(value, torch.Tensor) and value.numel() <= 64:
        return _plain(value.tolist(), where)
    item = getattr(value, "item", None)
    if callable(item) and not isinstance(value, torch.Tensor):
        return _plain(item(), where)
    raise RankError(
        f"{where}: {type(value).__name__} has no spelling that is the same on every rank. Give plain values here, and"
        " tensors as `tensors=`."
    )
