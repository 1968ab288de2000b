"""Results as strict JSON: what no parser has to guess at, with a digest of all but what the run cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

APART = ("digest", "cost")
"""Keys of a document that its digest leaves out: itself, and time, memory and work, which differ from run to run."""


def to_json(schema: str, result: object, *, indent: int = 1) -> str:
    """A result as JSON, its fields behind the name of their schema and the digest, its cost in the end; not finite
    numbers are the words nan, inf, -inf.
    """
    document = {"schema": schema, **plain(result)}
    content = {key: value for key, value in document.items() if key not in APART}
    ending = {key: document[key] for key in APART if key in document}
    ordered = {"schema": schema, "digest": digest(document), **content, **ending}
    return json.dumps(ordered, indent=indent, allow_nan=False)


def digest(document: Mapping[str, Any]) -> str:
    """`sha256:` and 64 hex digits of a document of plain data without the keys of `APART`: as JSON in ASCII, keys
    sorted, without blanks.
    """
    stable = {key: value for key, value in document.items() if key not in APART}
    text = json.dumps(stable, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{sha256(text.encode('ascii')).hexdigest()}"


def plain(value: Any) -> Any:
    """Plain data for strict JSON: dataclasses become objects, without fields of metadata `json: False`; a number that
    is not finite becomes the word nan, inf or -inf.
    """
    if is_dataclass(value) and not isinstance(value, type):
        members = (field for field in fields(value) if field.metadata.get("json", True))
        return {field.name: plain(getattr(value, field.name)) for field in members}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
