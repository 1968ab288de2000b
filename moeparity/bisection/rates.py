"""This machine's rates (seconds per amount of work), which estimates use; measured once, then kept in the user's cache.

They are measured again if the processor, its instructions, torch, its threads, the device or the dtypes change.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from moeparity import paths
from moeparity.bisection.observe import observe
from moeparity.bisection.pipeline import first_toggles
from moeparity.bisection.prepare import prepare
from moeparity.bisection.resume.cache import prepared
from moeparity.documents.checked import shipped
from moeparity.engine.calibration import Clock, measured_rates
from moeparity.engine.duration import CALLS, Rates
from moeparity.errors import MoeparityError, display_path
from moeparity.inputs.machine import cpu_name, numerics_key
from moeparity.output.writing import write_tensors, write_text

FORMAT: Final = "moeparity.rates/1"
"""Format of the file. The number grows if rates come to mean other work, so that older files are not used."""
_log = logging.getLogger("moeparity")
_SMALL: Final[Mapping[str, Any]] = {
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "vocab_size": 256,
}
_RECIPE: Final = """kind: recipe
checkpoint: .
weights: synthetic(0)
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager, dtype: bf16}
candidate: {profile: hf-default, dtype: bf16}
gate: {metric: k3, below: 1.0e-4}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRates:
    """Rates, the day on which they were measured, and the file that keeps them (None: no file)."""

    rates: Rates
    date: str
    file: Path | None

    def __str__(self) -> str:
        """When they were measured and where they are kept, in words."""
        suffix = "" if self.file is None else f", kept in {display_path(self.file)}"
        return f"of this machine, measured on {self.date}{suffix}"


def machine_rates(dtypes: Sequence[str], device: torch.device) -> MachineRates:
    """This machine's rates, read from the file that keeps them. Without one they are measured, which takes some
    seconds, and written there if that is possible.
    """
    key = _key(dtypes, device)
    file = _file(key)
    stored = None if file is None else _stored(file, key)
    if stored is not None:
        return stored
    clock = _clock(device)
    fitted = measured_rates(dtypes, device, clock=clock)
    rates = Rates(seconds={**fitted.seconds, (CALLS, ""): _seconds_of_a_call(str(device), clock)})
    date = datetime.now(UTC).date().isoformat()
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            seconds = [[*amount, second] for amount, second in rates.seconds.items()]
            write_text(file, json.dumps({"format": FORMAT, "of": key, "date": date, "seconds": seconds}, indent=1))
        except (OSError, MoeparityError) as error:
            _log.warning("%s: rates are not kept there: %s", display_path(file), error)
            file = None
    return MachineRates(rates=rates, date=date, file=file)


def _clock(device: torch.device) -> Clock:
    """Processor time if one thread does everything, so that other programs on the machine have no effect; else wall
    time.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def _key(dtypes: Sequence[str], device: torch.device) -> dict[str, str]:
    return {"processor": cpu_name(), **numerics_key(device), "dtypes": ", ".join(dtypes)}


def _file(key: Mapping[str, str]) -> Path | None:
    folder = paths.cache_folder()
    if folder is None:
        return None
    try:
        prepared(folder)
    except OSError as error:
        _log.warning("%s: no rates are kept there: %s", display_path(folder), error.strerror)
        return None
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()
    return folder / "rates" / f"{digest}.json"


def _stored(file: Path, key: Mapping[str, str]) -> MachineRates | None:
    """The rates that a file keeps of exactly this machine; None for anything else, which is then overwritten."""
    try:
        fields = json.loads(paths.contents(file, "rates of a machine"))
        seconds = {(str(amount), str(dtype)): float(second) for amount, dtype, second in fields["seconds"]}
        sound = fields["format"] == FORMAT and fields["of"] == key and (CALLS, "") in seconds
        date = str(fields["date"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not sound or not all(math.isfinite(second) and second >= 0 for second in seconds.values()):
        return None
    return MachineRates(rates=Rates(seconds=seconds), date=date, file=file)


def _seconds_of_a_call(device: str, clock: Callable[[], float]) -> float:
    """Seconds of one kernel call in a first pass with all its observers, measured by bisecting a small model of random
    weights, in which nothing else takes time.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {**json.loads(shipped("configs", "json")["qwen3_moe"].read_text("utf-8")), **_SMALL}
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        (folder / "recipe.yaml").write_text(_RECIPE, "utf-8")
        ids = torch.randint(0, 256, (16, 32), generator=torch.Generator().manual_seed(0))
        write_tensors(folder / "tokens.safetensors", {"input_ids": ids})
        study = prepare(folder / "recipe.yaml", device=device)
        seconds = []
        for _ in range(2):
            begun = clock()
            observed = observe(study, first_toggles(study), first=True)
            seconds.append(clock() - begun)
    return min(seconds) / sum(observed.cost.counts.evaluations.values())
