"""Numbers that environment variables raise limits by."""

from __future__ import annotations

import math
import os

from moeparity.errors import MoeparityError


def number(variable: str, default: float, meaning: str, *, infinite: bool = False) -> float:
    """The number above 0 that an environment variable holds; `default` where it is not set.

    `infinite`: whether it may be infinity. `meaning` says in an error what is expected. Raises MoeparityError.
    """
    text = os.environ.get(variable, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0 or (math.isinf(value) and not infinite):
        raise MoeparityError(f"{variable}={text}: expected {meaning}.")
    return value
