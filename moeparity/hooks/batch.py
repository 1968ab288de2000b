"""Writes sequences in moeparity's own log format (docs/logs.md), from what a trainer holds of a batch."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "MOEPARITY_BATCH"
"""The environment variable that names the folder to write to. Without it hooks write nothing."""
BATCHES: Final = "MOEPARITY_BATCHES"
"""The environment variable that says how many batches each process writes: 1 by default."""

MARK: Final = "writes_batches"
"""The attribute of a function that a hook has wrapped."""

_written: dict[str, int] = {}


def line(
    name: str,
    ids: Sequence[int],
    scored: Sequence[int],
    sampler: Sequence[float] | None,
    trainer: Sequence[float] | None,
    prompt: int,
    **more: Any,
) -> str:
    """A sequence as a line of JSON.

    ids, scored, sampler, trainer: one entry per token, prompt included: ids, 0 or 1, log-probabilities in nats. None:
    that side is not known. prompt: tokens of the prompt, 0 if `ids` are the response alone. more: further keys of the
    format.
    """

    def of_scored(values: Sequence[float]) -> list[float | None]:
        return [float(value) if is_scored else None for value, is_scored in zip(values, scored, strict=True)]

    sides = {"logprobs": sampler, "trainer_logprobs": trainer}
    record = {
        "id": name,
        "input_ids": [int(token) for token in ids],
        "mask": list(map(int, scored)),
        **{key: of_scored(values) for key, values in sides.items() if values is not None},
        "prompt_tokens": prompt,
        **more,
    }
    return json.dumps(record) + "\n"


def responses(
    completions: Any,
    completion_mask: Any,
    scored: Any,
    sampler: Any,
    trainer: Any,
    *,
    step: int,
    prompts: Any = None,
    prompt_mask: Any = None,
    routes: Any = None,
    columns: Mapping[str, Any] | None = None,
    computes_pads: bool = False,
    sampling_params: dict[str, Any] | None = None,
) -> Iterator[str]:
    """Lines of a batch whose masks and log-probabilities are those of the responses.

    completions, completion_mask, scored, sampler, trainer: tensors [B, T]; the masks say which tokens exist and which
    count. sampler, trainer: None if not known. prompts, prompt_mask: tensors [B, P], or None if the trainer has the
    responses alone. routes: expert ids, a tensor [B, P + T, MoE layers, experts a token], or None. columns: further
    tensors [B, T] of numbers by the format's keys. computes_pads: whether the trainer computes what the masks leave
    out, prompts and responses side by side; the lines then say how much that is. sampling_params: what is sampled with,
    as far as it is known.
    """
    for n in range(len(completions)):
        present = completion_mask[n].bool()
        before = [] if prompts is None else prompts[n][prompt_mask[n].bool()].tolist()
        nothing = [0] * len(before)
        ids, counted = completions[n][present].tolist(), scored[n][present].tolist()
        first, second = (None if side is None else nothing + side[n][present].tolist() for side in (sampler, trainer))
        further: dict[str, Any] = {} if sampling_params is None else {"sampling_params": sampling_params}
        for key, column in (columns or {}).items():
            further[key] = [None] * len(before) + column[n][present].tolist()
        if computes_pads:
            further["pads"] = _pads(prompts[n], prompt_mask[n].bool(), completions[n], present)
        if routes is not None:
            attended = present if prompts is None else _joined(prompt_mask[n].bool(), present)
            further["routed_experts"] = routes[n][-len(attended) :][attended].tolist()
        yield line(f"{step}/{n}", before + ids, nothing + counted, first, second, len(before), step=step, **further)


def _pads(prompt: Any, prompt_present: Any, response: Any, present: Any) -> dict[str, int]:
    absent = prompt[~prompt_present].tolist() + response[~present].tolist()
    before = int((~prompt_present).sum())
    return {"before": before, "behind": len(absent) - before, "id": absent[0] if absent else 0}


def _joined(first: Any, second: Any) -> Any:
    return first.new_tensor(first.tolist() + second.tolist())


def dump(framework: str, step: int, lines: Callable[[], Iterable[str]]) -> Path | None:
    """Write a batch to `FOLDER`/framework-step-process.jsonl unless this process has written its share; the path, or
    None. Whatever fails is printed to standard error: the trainer goes on.
    """
    folder = os.environ.get(FOLDER)
    if not folder or _written.get(framework, 0) >= _batches():
        return None
    _written[framework] = _written.get(framework, 0) + 1
    file = Path(folder) / f"{framework}-{step}-{os.getpid()}.jsonl"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as opened:
            opened.writelines(lines())
        partial.replace(file)
    except Exception:  # noqa: BLE001
        print(f"moeparity: {file} was not written:\n{traceback.format_exc()}", file=sys.stderr)  # noqa: T201
        return None
    return file


def _batches() -> int:
    text = os.environ.get(BATCHES, "1")
    return int(text) if text.isdecimal() else 1
