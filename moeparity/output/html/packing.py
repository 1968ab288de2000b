"""Data for a page's scripts: arrays as base64, everything as JSON that can't end a script tag."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from moeparity.output.json import plain
from moeparity.output.words import printable

_KINDS = {"uint8": "u1", "int16": "i2", "int32": "i4", "float32": "f4"}
_IN_SCRIPT = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}


def packed(array: NDArray[Any]) -> dict[str, Any]:
    """An array as its dtype, its shape and the base64 of its bytes, little-endian.

    dtypes: uint8, int16, int32, float32. Raises KeyError for others.
    """
    kind = _KINDS[array.dtype.name]
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return {"kind": kind, "shape": list(array.shape), "base64": base64.b64encode(data).decode("ascii")}


def script_data(data: Mapping[str, Any]) -> Markup:
    """JSON for `<script type="application/json">`. It has no `<`, so that no text in it can end the tag or start a
    comment; characters that hide text or change its direction are written by their numbers.
    """
    text = json.dumps(_printable(plain(data)), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return Markup(text.translate(_IN_SCRIPT))  # noqa: S704  (nothing HTML knows is left in it)


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return {key: _printable(item) for key, item in value.items()} if isinstance(value, dict) else value
