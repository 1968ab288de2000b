"""An option's value as its kind has it, of what stands in a launch file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from moeparity.errors import SpecError, did_you_mean, listed, shown, whole_number
from moeparity.profiles.launch.options import Option
from moeparity.profiles.launch.source import FALSE, TRUE, Entry, Null, Unresolved

_TOO_LARGE = 2.0**128
"""For fp32."""
_UNSET = (None, "none", "None", "null")


def value_of(option: Option, entry: Entry) -> Any:
    """The value as its option's kind; SpecError where it is none."""
    value = entry.value
    if isinstance(value, Unresolved):
        return value
    if isinstance(value, Null):
        return option.null or False
    if option.kind == "flag":
        return _flag(option, entry)
    if option.kind == "count":
        number = whole_number(value) if isinstance(value, str) else value
        if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
            return number
        raise _mismatch(option, entry, "a whole number from 1")
    if option.kind == "number":
        return _number(option, entry)
    if option.kind == "mapping" and option.shorthand and whole_number(str(value)) is not None:
        return {option.shorthand: int(value)}
    if option.kind == "mapping":
        return _mapping(option, entry)
    if option.kind == "any":
        return value
    word = "none" if value in _UNSET and "none" in (option.default, *option.choices) else value
    word = option.default if word in (None, "null") else str(word)
    if option.choices and word not in option.choices:
        raise _mismatch(option, entry, f"one of {listed(option.choices)}", did_you_mean(word, option.choices))
    return word


def _number(option: Option, entry: Entry) -> float:
    try:
        number = math.nan if isinstance(entry.value, bool) else float(entry.value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < _TOO_LARGE:
        raise _mismatch(option, entry, "a number from 0")
    return number


def _flag(option: Option, entry: Entry) -> bool:
    if entry.value is None or entry.value is True or str(entry.value) in TRUE:
        return True
    if entry.value is False or str(entry.value) in FALSE:
        return False
    raise _mismatch(option, entry, "true or false")


def _mapping(option: Option, entry: Entry) -> Mapping[str, Any]:
    if isinstance(entry.value, Mapping):
        return entry.value
    try:
        mapping = json.loads(entry.value) if isinstance(entry.value, str) else None
    except ValueError:
        mapping = None
    if not isinstance(mapping, dict):
        raise _mismatch(option, entry, "a mapping in JSON")
    return mapping


def _mismatch(option: Option, entry: Entry, expected: str, near: str = "") -> SpecError:
    shown_value = "nothing" if entry.value is None else shown(entry.value)
    return SpecError(f"{entry.where}: {option.name} is {shown_value}; expected {expected}.{near}")
