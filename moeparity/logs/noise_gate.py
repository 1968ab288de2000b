"""The bounds of an examination's noise, to which a later log is held."""

from __future__ import annotations

import json
from collections.abc import Mapping

from moeparity import paths
from moeparity.errors import SpecError, Where, display_path

FLIPPED = "flipped"
"""The only statistic that is no metric: the fraction of tokens whose routes differ between the sides in some MoE layer.
"""
_SCHEMA = "moeparity.examination/"


def noise_bounds(file: str, where: Where) -> Mapping[str, float]:
    """By metric the bound of what legal arithmetic makes, from a file that `moeparity doctor --json` wrote; `where` is
    the file that names it. Raises SpecError.
    """
    path = where.path.parent / file
    if not paths.present(path):
        raise SpecError(f"{where}: expect.noise: there is no file {display_path(path)}. Check the path.")
    try:
        examination = json.loads(paths.contents(path, "config.json"))
    except OSError as error:
        raise SpecError(f"{where}: expect.noise: {display_path(path)} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: expect.noise: {display_path(path)} is no JSON ({error}).") from None
    if not isinstance(examination, dict) or not str(examination.get("schema", "")).startswith(_SCHEMA):
        raise SpecError(
            f"{where}: expect.noise: {display_path(path)} is no examination. Write one with `moeparity doctor EVIDENCE "
            "--json FILE`."
        )
    noise = examination.get("noise")
    if noise is None:
        raise SpecError(
            f"{where}: expect.noise: {display_path(path)} has no bounds, since fewer than three engines could be "
            "simulated for its model. Drop `noise`, and set `metrics`."
        )
    try:
        return {str(statistic["name"]): float(statistic["bound"]) for statistic in noise["statistics"]}
    except (KeyError, TypeError, ValueError):
        raise SpecError(
            f"{where}: expect.noise: {display_path(path)} is damaged: expected `noise.statistics`, each with a name "
            "and a bound. Write it anew with `moeparity doctor EVIDENCE --json FILE`."
        ) from None
