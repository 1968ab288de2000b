"""Logs of a server that verifies drafts, drawn by rejection sampling: a log with the draft's own log-probabilities at
accepted drafts is named, and noise of no kind is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeparity.logs.diagnosis import CAUSES
from moeparity.logs.diagnosis.drafts import NAME
from moeparity.logs.diagnosis.finding import Finding
from moeparity.logs.log_files import Opening, measure_files
from moeparity.logs.request import MetricsRequest

VOCABULARY, PROMPT, DRAFTED = 60, 3, 3
Logits = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """How a log comes about. apart: how far the draft model's logits are from the target's. noise: of both sides'
    logits; flips: of some contexts in place of it. drafts_own: the fault. temperature: that the sampler draws at;
    top_k: what it keeps; neither of which the trainer knows. digits: of the record.
    """

    apart: float = 0.5
    noise: float = 0.01
    flips: float = 0.0
    drafts_own: bool = False
    temperature: float = 1.0
    top_k: int = VOCABULARY
    digits: int | None = None
    sequences: int = 40
    length: int = 60
    verify_noise: float = 0.0
    stale: float = 0.0


def log_softmax(z: Logits) -> Logits:
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def with_top_k(z: Logits, top_k: int) -> Logits:
    return np.where(z >= np.sort(z)[-top_k], z, -np.inf)


class Sampler:
    """Draws a sequence step by step: tokens, both sides' log-probabilities, and the spans of its steps."""

    def __init__(self, how: Drawn, seed: int) -> None:
        self.how, self.draw = how, np.random.default_rng(seed)

    def contexts(self) -> tuple[Logits, Logits, Logits]:
        """The log-probabilities of target and draft as they are drawn from, and the trainer's, of a new context."""
        how, draw = self.how, self.draw
        z = draw.normal(size=VOCABULARY) * draw.uniform(0.5, 5)
        noise = 0.4 if draw.random() < how.flips else how.noise
        target = log_softmax(
            with_top_k((z + draw.normal(size=VOCABULARY) * (noise + how.verify_noise)) / how.temperature, how.top_k)
        )
        draft = log_softmax(with_top_k((z + draw.normal(size=VOCABULARY) * how.apart) / how.temperature, how.top_k))
        trainer = z * (1 + how.stale) + draw.normal(size=VOCABULARY) * how.noise
        return target, draft, log_softmax(trainer)

    def step(self) -> list[tuple[int, float, float]]:
        """A step that verifies drafts: token, sampler's and trainer's log-probability of each token that it gives."""
        out = []
        for _ in range(DRAFTED):
            target, draft, trainer = self.contexts()
            token = int(self.draw.choice(VOCABULARY, p=np.exp(draft)))
            if np.log(self.draw.random()) < target[token] - draft[token]:
                recorded = draft if self.how.drafts_own else target
                out.append((token, recorded[token], trainer[token]))
                continue
            rest = np.maximum(np.exp(target) - np.exp(draft), 0)
            token = int(self.draw.choice(VOCABULARY, p=rest / rest.sum()))
            return [*out, (token, target[token], trainer[token])]
        target, _, trainer = self.contexts()
        token = int(self.draw.choice(VOCABULARY, p=np.exp(target)))
        return [*out, (token, target[token], trainer[token])]


def written(folder: Path, how: Drawn, seed: int) -> tuple[Path, Path]:
    log, schedule = folder / "log.jsonl", folder / "steps.jsonl"
    records, steps = [], []
    for number in range(how.sequences):
        sampler, tokens = Sampler(how, seed * 1000 + number), [0] * PROMPT
        sides: list[list[float | None]] = [[None, None]] * PROMPT
        steps.append({"spans": [[number, 0, PROMPT]], "phase": "prefill"})
        first = True
        while len(tokens) < how.length:
            outputs = sampler.step()[-1:] if first else sampler.step()
            if not first:
                start = len(tokens) - 1
                steps.append({"spans": [[number, start, start + len(outputs)]], "phase": "verify"})
            first = False
            for token, recorded, scored in outputs:
                tokens.append(token)
                sides.append([round(recorded, how.digits) if how.digits else recorded, scored])
        records.append({
            "id": str(number),
            "input_ids": tokens,
            "mask": [0] * PROMPT + [1] * (len(tokens) - PROMPT),
            "logprobs": [min(side[0], 0.0) if side[0] is not None else None for side in sides],
            "trainer_logprobs": [side[1] for side in sides],
        })  # fmt: skip
    log.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    schedule.write_text("".join(json.dumps(step) + "\n" for step in steps), "utf-8")
    return log, schedule


def finding(folder: Path, how: Drawn, seed: int = 0, *, steps: bool = True) -> Finding | None:
    log, schedule = written(folder, how, seed)
    diagnosis = measure_files([log], MetricsRequest(), Opening(schedule=schedule if steps else None)).diagnosis
    assert diagnosis is not None
    return next((each for each in diagnosis.findings if each.name == NAME), None)


FAULTS = {
    "a near draft": Drawn(drafts_own=True, apart=0.2),
    "a far draft": Drawn(drafts_own=True, apart=1.5),
    "beside flips": Drawn(drafts_own=True, apart=0.6, flips=0.05),
    "in fp32": Drawn(drafts_own=True, noise=1e-6),
    "few sequences": Drawn(drafts_own=True, sequences=10, apart=1.0),
    "three digits": Drawn(drafts_own=True, digits=3),
}
BENIGN = {
    "roundings": Drawn(),
    "a far draft": Drawn(apart=2.5),
    "a draft that is the target": Drawn(apart=0.01),
    "equal engines": Drawn(noise=0.0),
    "roundings of fp32": Drawn(noise=1e-6),
    "flips": Drawn(flips=0.1),
    "rare flips": Drawn(flips=0.005),
    "loud": Drawn(noise=0.3),
    "loud where it verifies": Drawn(verify_noise=0.1),
    "three digits": Drawn(noise=1e-6, digits=3),
    "few sequences": Drawn(sequences=8, length=24, flips=0.05),
    "a temperature": Drawn(temperature=0.7),
    "a low temperature": Drawn(temperature=0.4, apart=1.0),
    "top-k": Drawn(top_k=8),
    "other weights": Drawn(stale=0.2),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_drafts_own_log_probabilities_are_named(name: str, tmp_path: Path) -> None:
    result = finding(tmp_path, FAULTS[name])
    assert result is not None
    assert result.verdict == "named"
    ratio, size, control = result.evidence
    assert ratio.low is not None
    assert ratio.low > 3
    assert size.value > 3 * control.value or "flips" in name
    assert NAME in CAUSES


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BENIGN)
def test_noise_is_not_named(name: str, seed: int, tmp_path: Path) -> None:
    result = finding(tmp_path, BENIGN[name], seed)
    assert result is not None
    assert result.verdict in ("ruled out", "undecided")


def test_noise_is_ruled_out(tmp_path: Path) -> None:
    result = finding(tmp_path, BENIGN["roundings"])
    assert result is not None
    assert result.verdict == "ruled out"
    ratio = result.evidence[0]
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1 < ratio.high < 2


def test_a_temperature_leaves_it_open(tmp_path: Path) -> None:
    """It moves tokens by their contexts, and drafts are accepted in some more than in others."""
    log, schedule = written(tmp_path, Drawn(temperature=0.7), 0)
    diagnosis = measure_files([log], MetricsRequest(), Opening(schedule=schedule)).diagnosis
    assert diagnosis is not None
    assert diagnosis.names("named", "semantics") == ("temperature",)
    result = diagnosis.find(NAME)
    assert (result.verdict, result.reason) == (
        "undecided",
        "A temperature or a truncation is named, which may move accepted drafts more than others.",
    )


@pytest.mark.parametrize(
    ("how", "steps", "expected"),
    [
        (Drawn(drafts_own=True), False, None),
        (Drawn(drafts_own=True, sequences=7), True, "not tested"),
        (Drawn(apart=60.0, sequences=3, length=6), True, None),
    ],
)
def test_what_there_is_nothing_to_compare_of(how: Drawn, steps: bool, expected: str | None, tmp_path: Path) -> None:
    result = finding(tmp_path, how, steps=steps)
    assert (result and result.verdict) == expected


def test_repeated_sequences_say_nothing_more(tmp_path: Path) -> None:
    """Forty copies of one sequence are one."""
    log, schedule = written(tmp_path, Drawn(drafts_own=True, sequences=1), 0)
    record, steps = json.loads(log.read_text()), [json.loads(line) for line in schedule.read_text().splitlines()]
    log.write_text("".join(json.dumps({**record, "id": str(n)}) + "\n" for n in range(40)))
    again = [{**step, "spans": [[n, *step["spans"][0][1:]]]} for n in range(40) for step in steps]
    schedule.write_text("".join(json.dumps(step) + "\n" for step in again))
    diagnosis = measure_files([log], MetricsRequest(), Opening(schedule=schedule)).diagnosis
    assert diagnosis is not None
    assert diagnosis.find(NAME).verdict == "not tested"
