"""Why a record may not be reproduced: the diagnosis of logs, applied to the record and the side that stands for it."""

from __future__ import annotations

from pathlib import Path

from moeparity.bisection.record.data import LikelyCause
from moeparity.bisection.record.observe import Records
from moeparity.errors import Where
from moeparity.logs.diagnosis import Observer
from moeparity.logs.diagnosis.finding import Finding
from moeparity.metrics.chunk import Chunk

_POWERS = {"temperature": 1.0, "raw log-probs (temperature)": -1.0}
"""By name of a finding: the exponent p. Setting the side's temperature to (the finding's T) ** p gives the record."""
_FOR_THE_CAUSE_NAMED = "E[rho]"
_OF_SAMPLED = frozenset({"truncation", "raw log-probs (truncation)", _FOR_THE_CAUSE_NAMED})
"""Findings that rest on the tokens having been sampled by the record's engine."""


def causes(records: Records, path: Path, *, sampled: bool) -> tuple[LikelyCause, ...]:
    """The causes that the diagnosis of logs names if the record is taken as a log's rollout and the side as its
    trainer.

    `path` is the token file. sampled: the record's engine sampled the tokens. () if the log-probabilities of the side
    are not finite.
    """
    if not bool(records.delta(records.recorder).isfinite().all()):
        return ()
    observer = Observer()
    observer.add(_chunk(records, path))
    certain = [
        finding
        for finding in observer.diagnosis().findings
        if finding.verdict == "named" and (sampled or finding.name not in _OF_SAMPLED)
    ]
    others = [finding for finding in certain if finding.name != _FOR_THE_CAUSE_NAMED]
    return tuple(
        LikelyCause(
            name=finding.name,
            meaning=finding.tier == "semantics",
            reason=finding.reason,
            advice=_advice(finding, records.recorder),
        )
        for finding in others or certain
    )


def _chunk(records: Records, path: Path) -> Chunk:
    """The tokens that have a record, as tokens of a log."""
    assert records.logprobs is not None
    mask = records.mask.cpu()
    sequence, column = mask.nonzero(as_tuple=True)
    return Chunk(
        rollout=records.logprobs.cpu()[mask],
        trainer=records.of(records.recorder),
        sequence=sequence,
        position=column,
        tokens=records.input_ids.cpu()[mask],
        ids=tuple(str(row) for row in range(len(mask))),
        where=(Where(path),) * len(mask),
    )


def _advice(finding: Finding, side: str) -> str:
    """What to try next, as a key of a recipe if there is one for it."""
    power = _POWERS.get(finding.name)
    if power is None or not finding.evidence:
        return finding.advice
    value = finding.evidence[0].value ** power
    return f'`set: {{"log_probs:temperature": {value:.2g}}}` on the {side} (docs/log-probs.md). {finding.advice}'
