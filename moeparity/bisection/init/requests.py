"""What requests ask a sampler for, as far as launch files say, and what that sets of `log_probs`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from moeparity import paths
from moeparity.errors import display_path
from moeparity.logs.record import OFF
from moeparity.profiles.launch.report import LaunchSetting, LaunchSide

_NAMES: Final = ("temperature", *OFF)
_GENERATION_CONFIG: Final = "override_generation_config"


class Requested(NamedTuple):
    """A number that requests ask for, and the place that sets it."""

    value: float
    origin: str


def requested(settings: Iterable[LaunchSetting]) -> Mapping[str, Requested]:
    """By name, what is asked for; of several the first. What is no number is left out."""
    found_by_name: dict[str, Requested] = {}
    for name, value, origin in _stated(settings):
        number = _number(value)
        if number is not None:
            found_by_name.setdefault(name, Requested(number, origin))
    return found_by_name


def defaults(settings: Iterable[LaunchSetting], checkpoint: Path | None) -> Iterator[LaunchSetting]:
    """What a vLLM takes from the checkpoint's generation_config.json where a request names nothing, if its
    log-probabilities are of what is sampled from; nothing if `--generation-config` names another place.
    """
    values = {setting.name.rpartition(".")[2]: setting.value for setting in settings}
    file = None if checkpoint is None else checkpoint / "generation_config.json"
    processed = values.get("logprobs_mode", "").startswith("processed")
    if file is None or not processed or values.get("generation_config", "auto") != "auto" or not paths.is_file(file):
        return
    for name, value in _fields(paths.contents(file, "config.json").decode("utf-8", "replace")):
        says = "vLLM takes it where a request names none"
        where = f"{display_path(file)} ({says})"
        yield LaunchSetting(role="", name=name, given=True, value=str(value), implies="", profile="", where=where)


def with_requests(side: LaunchSide, settings: Sequence[LaunchSetting], requests: Mapping[str, Requested]) -> LaunchSide:
    """The side that samples with what requests ask for, as far as its log-probabilities are of that: a server that was
    launched by itself and whose log-probabilities are of logits divided by the temperature has that; one that samples
    by vLLM's processed_logprobs or processed_logits has its processors too.
    """
    modes = {s.name.rpartition(".")[2]: s.value for s in settings if s.role in ("", side.role)}
    processed = modes.get("logprobs_mode", "").startswith("processed")
    divides = processed or modes.get("SGLANG_RETURN_ORIGINAL_LOGPROB") == "false"
    changed: dict[str, Requested] = {}
    if (temperature := requests.get("temperature")) and divides and side.role == "server":
        changed |= {} if temperature.value in (0, 1) else {"temperature": temperature}
    # A greedy request drops top-k, top-p and min-p; whether all are greedy the temperature says.
    if processed and side.role != "trainer" and (temperature is None or temperature.value != 0):
        changed |= {name: request for name in OFF if (request := _acting(name, requests)) is not None}
    if not changed:
        return side
    sets = {f"log_probs:{name}": _as_attribute(name, request.value) for name, request in changed.items()}
    origins = {f"log_probs:{name}": request.origin for name, request in changed.items()}
    return replace(side, sets={**side.sets, **sets}, origins={**side.origins, **origins})


def _acting(name: str, requests: Mapping[str, Requested]) -> Requested | None:
    """A request that changes something: vLLM's top_k of -1 keeps all."""
    request = requests.get(name)
    return None if request is None or request.value in (OFF[name], -1 if name == "top_k" else OFF[name]) else request


def _as_attribute(name: str, value: float) -> float:
    return int(value) if name == "top_k" else value


def _stated(settings: Iterable[LaunchSetting]) -> Iterator[tuple[str, object, str]]:
    for setting in settings:
        name = setting.name.rpartition(".")[2].removeprefix("rollout_")
        if setting.given and name in _NAMES:
            yield name, setting.value, f"{setting.where}: {setting.name}"
        elif setting.given and name == _GENERATION_CONFIG:
            yield from ((n, v, f"{setting.where}: {setting.name}") for n, v in _fields(setting.value) if n in _NAMES)


def _fields(text: str) -> Iterator[tuple[str, object]]:
    try:
        fields = json.loads(text)
    except ValueError:
        return
    if isinstance(fields, dict):
        yield from fields.items()


def _number(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
