"""Results as strict JSON: what no parser has to guess at."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def to_json(schema: str, result: object, *, indent: int = 1) -> str:
    """A result as JSON, its fields behind the name of their schema; not finite numbers are the words nan, inf, -inf."""
    return json.dumps({"schema": schema, **plain(result)}, indent=indent, allow_nan=False)


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
