"""Results as strict JSON, with a digest of everything except what the run cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any

APART = ("digest", "cost")
"""Keys that a document's digest leaves out: the digest itself, and time, memory and work, which vary from run to
run.
"""


def to_json(schema: str, result: object, *, indent: int = 1) -> str:
    """A result as JSON: first the schema's name and the digest, then the fields, cost last. Numbers that are not finite
    are written as the words nan, inf, -inf.
    """
    document = {"schema": schema, **plain(result)}
    content = {key: value for key, value in document.items() if key not in APART}
    ending = {key: document[key] for key in APART if key in document}
    ordered = {"schema": schema, "digest": digest(document), **content, **ending}
    return json.dumps(ordered, indent=indent, allow_nan=False)


def digest(document: Mapping[str, Any]) -> str:
    """`sha256:` and 64 hex digits of a document of plain data without the keys of `APART`. It is hashed as ASCII JSON
    with sorted keys and without blanks.
    """
    stable = {key: value for key, value in document.items() if key not in APART}
    text = json.dumps(stable, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{sha256(text.encode('ascii')).hexdigest()}"


def plain(value: Any) -> Any:
    """Plain data for strict JSON. Dataclasses become objects, without fields that have the metadata `json: False`;
    numbers that are not finite become the words nan, inf or -inf.
    """
    if is_dataclass(value) and not isinstance(value, type):
        members = (field for field in fields(value) if field.metadata.get("json", True))
        return {field.name: plain(getattr(value, field.name)) for field in members}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
