"""The notebook of the docs: its cells run, and show what is written in it."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import notebook

Outputs = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return notebook.read()


@pytest.fixture(scope="module")
def shown(stored: dict[str, Any]) -> Outputs:
    return notebook.outputs(stored)


def test_its_cells_show_what_is_written_in_it(stored: dict[str, Any], shown: Outputs) -> None:
    cells = notebook.code_cells(stored)
    is_same_machine = stored["metadata"]["made_on"] == notebook.key()
    compared = [
        number
        for number, cell in enumerate(cells)
        if is_same_machine or notebook.STABLE in cell["metadata"].get("tags", ())
    ]
    assert len(compared) >= 4
    for number in compared:
        assert shown[number] == cells[number]["outputs"], "run `python -m scripts.notebook`"
    # Of the others, that they show something of the same kinds.
    for cell, outputs in zip(cells, shown, strict=True):
        assert [sorted(output.get("data", ())) for output in outputs] == [
            sorted(output.get("data", ())) for output in cell["outputs"]
        ]


def test_it_is_a_notebook(stored: dict[str, Any]) -> None:
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids)
    for number, cell in enumerate(notebook.code_cells(stored), 1):
        assert cell["execution_count"] == number
        assert {"cell_type", "execution_count", "id", "metadata", "outputs", "source"} == set(cell)
        assert all(output["output_type"] in {"stream", "execute_result"} for output in cell["outputs"])


def test_a_cell_that_shows_something_else_is_seen() -> None:
    source = ["x = 1\n", "print('a')\n", "x + 1"]
    cells = [{"cell_type": "code", "source": source}, {"cell_type": "code", "source": ["x = x + 4"]}]
    (first, second) = notebook.outputs({"cells": cells})
    assert [output.get("text") or output["data"] for output in first] == [["a\n"], {"text/plain": ["2"]}]
    assert second == []
