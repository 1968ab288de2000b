"""What a check of logs may hold (`kind: log`): files of log-probabilities, and the bound they are held to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from moeparity.plan.spec.base import Model
from moeparity.plan.spec.expect import LogExpect


class LogGate(Model):
    """The bound that decides parity of a log: on any metric that is a mean, by its name in docs/metrics.md."""

    metric: str
    below: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LogCheck(Model):
    """`kind: log`: logs of log-probabilities and what `moeparity check` holds them to.

    `files` are paths, or patterns such as `train_data_step*.jsonl`, beside this file; `trainer` likewise, where the
    sampler's and the trainer's log-probabilities lie in files of their own, joined by `join`. `partial` leaves out
    sequences that only one side has. `format` and `trainer_format` are what the files are, read off them by default.
    """

    kind: Literal["log"]
    files: Annotated[list[str], Field(min_length=1)]
    trainer: list[str] = []
    format: str | None = None
    trainer_format: str | None = None
    join: Literal["id", "order"] = "id"
    partial: bool = False
    gate: LogGate
    expect: LogExpect = LogExpect()
