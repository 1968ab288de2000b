"""What a record that a side does not reproduce looks like: the diagnosis of logs, of the record and of that side."""

from __future__ import annotations

from pathlib import Path

from moeparity.bisection.record.observe import Records
from moeparity.bisection.record.report import LikelyCause
from moeparity.errors import Where
from moeparity.logs.diagnosis import Observer
from moeparity.logs.diagnosis.finding import Finding
from moeparity.metrics.chunk import Chunk

_POWERS = {"temperature": 1.0, "raw log-probs (temperature)": -1.0}
"""By finding: the side's temperature that gives the record is the finding's T to this power."""
_FOR_THE_CAUSE_NAMED = "E[rho]"


def causes(records: Records, path: Path) -> tuple[LikelyCause, ...]:
    """What the diagnosis of logs names where the record is a log's rollout, and the side that it is of, the trainer.

    `path` is that of the token file. Nothing where the side's log-probabilities are not finite.
    """
    if not bool(records.delta(records.recorder).isfinite().all()):
        return ()
    observer = Observer()
    observer.add(_chunk(records, path))
    certain = [finding for finding in observer.diagnosis().findings if finding.verdict == "named"]
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
    """The tokens that have a record, as those of a log."""
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
    """What to try next, in a recipe's keys where a recipe has one for it."""
    power = _POWERS.get(finding.name)
    if power is None or not finding.evidence:
        return finding.advice
    value = finding.evidence[0].value ** power
    return f'`set: {{"log_probs:temperature": {value:.2g}}}` on the {side} (docs/log-probs.md). {finding.advice}'
