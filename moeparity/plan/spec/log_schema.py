"""The schema of a check of logs (`kind: log`): files of log-probabilities, and the bound that they must keep."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moeparity.documents.model import Model
from moeparity.plan.spec.expect import LogExpect


class LogGate(Model):
    """The bound that decides parity of a log: on any metric that is a mean, by its name in docs/metrics.md."""

    metric: str
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LogCheck(Model):
    """`kind: log`: logs of log-probabilities and what `moeparity check` holds them to.

    `files` are paths, or patterns such as `train_data_step*.jsonl`, relative to this file. `trainer` are those of the
    trainer, where sampler and trainer wrote separate files; their sequences are paired by `join`. `partial` leaves out
    sequences that only one side has. `tokenizer` is a tokenizer.json, or a folder with one, that aligns both sides' ids
    by their text where they differ. `format` and `trainer_format` are the formats of the files, detected by default.
    """

    kind: Literal["log"]
    files: Annotated[list[str], Field(min_length=1)]
    trainer: list[str] = []
    format: str | None = None
    trainer_format: str | None = None
    join: Literal["id", "order"] = "id"
    partial: bool = False
    tokenizer: str | None = None
    gate: LogGate
    expect: LogExpect = LogExpect()
