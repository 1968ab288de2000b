"""The footer of a parquet file says what pyarrow's own metadata says."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from moeparity.logs.formats.footer import Group, row_groups


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"version": "1.0"}, {"write_page_index": True}])
@pytest.mark.parametrize(("rows", "size"), [(0, 10), (1, 1), (300, 7), (300, 1000)])
def test_rows_and_values_are_pyarrows(rows: int, size: int, options: dict[str, Any]) -> None:
    columns: dict[str, list[Any]] = {
        "number": list(range(rows)),
        "text": ["x" * row for row in range(rows)],
        "lists": [[row] * (row % 5) for row in range(rows)],
        "nested": [{"k": 1.5, "m": [True, None]} for row in range(rows)],
        **{f"empty {column}": [None] * rows for column in range(20)},
    }
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, row_group_size=size, **options)
    metadata = parquet.ParquetFile(file).metadata
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    assert row_groups(file) == [
        Group(group.num_rows, max(group.column(column).num_values for column in range(group.num_columns)))
        for group in groups
    ]
