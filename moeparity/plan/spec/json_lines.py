"""Reads one line of a JSON-lines file: an object with known keys, each at most once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from moeparity.errors import MoeparityError, Where, did_you_mean, listed, shown


def json_object(
    where: Where, line: str, *, keys: Iterable[str], thing: str, example: str, error: type[MoeparityError]
) -> dict[str, Any]:
    """The fields of a line; keys other than `keys` are refused.

    thing: what a line describes, for messages; example: such a line. Raises `error`, which names the place.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if name in fields:
                raise error(f"{where}: key {name!r} is given twice. Keep one.")
            fields[name] = value
        return fields

    try:
        fields: Any = json.loads(line, object_pairs_hook=once)
    except (ValueError, RecursionError) as fault:
        reason = "a number too large or lists too deep"
        if isinstance(fault, json.JSONDecodeError):
            reason = f"{fault.msg}, column {fault.colno}"
        raise error(f"{where}: not JSON: {reason}. Expected one object per line, one line per {thing}.") from None
    if not isinstance(fields, dict):
        raise error(f"{where}: {shown(fields)} is no {thing}; expected an object, as {example}.")
    key_names = list(keys)
    for key in fields:
        if key not in key_names:
            raise error(
                f"{where}: unknown key {key!r}; expected one of {listed(key_names)}.{did_you_mean(key, key_names)}"
            )
    return fields
