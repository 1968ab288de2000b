"""Parquet files, read a batch of rows at a time; needs `pip install 'moeparity[logs]'`."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from moeparity.errors import LogError, Where
from moeparity.logs.formats import own
from moeparity.logs.formats.fields import Address, Fields
from moeparity.logs.formats.footer import BrokenFooterError, Group, row_groups
from moeparity.logs.formats.format import Format, Role, Unreadable
from moeparity.logs.record import Sequence
from moeparity.paths import LIMIT_FACTOR, limit

_BATCH = 64
"""How many rows are unpacked at once."""
_MOST_VALUES = 100_000_000
"""The most values of a column in one row group; writers make groups of about a million rows."""
_STEP = re.compile(r"rollout_(\d{1,18})")


class ParquetFile:
    """The rows of a file as records; lists of numbers become tensors, the rest Python values. Raises LogError."""

    def __init__(self, path: Path) -> None:
        self.where = Where(path)
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            raise LogError(
                f"{self.where}: a parquet file; reading one needs pyarrow: pip install 'moeparity[logs]'."
            ) from None
        # A name or text that is not valid UTF-8 is noticed only when it becomes a Python string.
        self._broken = (ArrowException, OSError, UnicodeDecodeError)
        try:
            self._file = parquet.ParquetFile(path)
            self.columns: list[str] = self._file.schema_arrow.names
        except self._broken as error:
            raise LogError(f"{self.where}: not a whole parquet file: {str(error).splitlines()[0][:200]}.") from None
        for name, times in Counter(self.columns).items():
            if times > 1:
                raise LogError(f"{self.where}: {times} columns are called {name!r}. Keep one of them.")
        groups = self._row_groups(path)
        self._refuse_bombs(groups)
        self._starts = list(accumulate((group.rows for group in groups[:-1]), initial=0))
        self._group: tuple[int, Any] = (-1, None)

    def _row_groups(self, path: Path) -> list[Group]:
        try:
            with path.open("rb") as file:
                return row_groups(file)
        except BrokenFooterError:
            raise LogError(
                f"{self.where}: not a whole parquet file: its footer does not say how many values its columns hold."
            ) from None

    def _refuse_bombs(self, groups: list[Group]) -> None:
        """Refuse columns of billions of values, which run lengths can encode in a kilobyte. Raises LogError."""
        for number, group in enumerate(groups):
            values = max(group.rows, group.values)
            if values > limit(_MOST_VALUES):
                raise LogError(
                    f"{self.where}: row group {number} holds {values:,} values in a column; at most "
                    f"{limit(_MOST_VALUES):,} are read ({LIMIT_FACTOR} raises that)."
                )

    def records(self) -> Iterator[tuple[Address, Fields]]:
        """All rows, in order."""
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH):
                for row in range(batch.num_rows):
                    yield (number,), self._record(batch, row)
                    number += 1
        except self._broken as error:
            raise LogError(f"{self.where}: cannot be read to its end: {str(error).splitlines()[0][:200]}.") from None

    def at(self, address: Address) -> Fields:
        """One row; its row group stays in memory until a row of another group is asked for."""
        group = bisect.bisect_right(self._starts, address[0]) - 1
        if self._group[0] != group:
            self._group = group, self._file.read_row_group(group).combine_chunks()
        return self._record(self._group[1], address[0] - self._starts[group])

    def _record(self, table: Any, row: int) -> Fields:
        values = {name: _value(table.column(name)[row]) for name in self.columns}
        return Fields(self.where, values)


def _value(cell: Any) -> Any:
    """A cell with a list of numbers as a tensor (NaN for a null float); any other cell as Python has it."""
    from pyarrow import types

    kind = cell.type
    if not (types.is_list(kind) or types.is_large_list(kind)) or not cell.is_valid:
        return cell.as_py()
    item = kind.value_type
    if types.is_integer(item) or types.is_floating(item) or types.is_boolean(item):
        return torch.tensor(cell.values.to_numpy(zero_copy_only=False))
    return cell.as_py()


def _columns_claim(record: Mapping[str, Any]) -> bool:
    return "rollout_log_probs" in record and "sample_index" in record and "total_length" in record


def _read_columns(fields: Fields, role: Role) -> list[Sequence]:
    """A sample of miles, whose lists of log-probabilities and masks cover the response."""
    ids = fields.tokens("tokens")
    response = fields.whole("response_length", least=1)
    if fields.whole("total_length") != len(ids) or response > len(ids):
        raise LogError(f"{fields.where}: total_length and response_length do not fit {len(ids)} tokens.")
    prompt = len(ids) - response
    scored = fields.mask("loss_mask", response) if fields.has("loss_mask") else torch.ones(response, dtype=torch.bool)
    unknown = torch.full((prompt,), torch.nan, dtype=torch.float64)
    match = _STEP.search(fields.where.path.name)
    step = int(match.group(1)) if match else None
    return [
        Sequence(
            id=f"{step}/{fields.whole('sample_index')}",
            where=fields.where,
            token_ids=ids,
            mask=torch.cat([torch.zeros(prompt, dtype=torch.bool), scored]),
            rollout=torch.cat([unknown, fields.floats("rollout_log_probs", response)]),
            prompt=prompt,
            step=step,
        )
    ]


PARQUET = Format(
    name="moeparity-parquet",
    producer="moeparity's own format as parquet",
    container="parquet",
    claims=own.claims,
    read=own.read,
    source="docs/logs.md",
    fixture="made by moeparity",
)
MILES = Format(
    name="miles-columns",
    producer="miles dashboard_columns/rollout_*.parquet",
    container="parquet",
    claims=_columns_claim,
    read=_read_columns,
    source="radixark/miles 31f1ca96, miles/ray/rollout/debug_data.py",
    fixture="made by miles 31f1ca96",
)
TRL = Unreadable(
    name="TRL's table of completions",
    claims=lambda record: {"prompt", "completion"} <= set(record) and not any("logprob" in key for key in record),
    reason="holds text but neither log-probabilities nor token ids; docs/logs.md has the lines that log "
    "them in a trainer.",
)
