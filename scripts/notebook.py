"""`python -m scripts.notebook`: run the cells of docs/notebook.ipynb, and write what they show into it.

Cells run in one process, as a kernel runs them: what a cell prints, then the value of its last expression. The
notebook's metadata say on which machine; there the outputs are the same each time, elsewhere only those of cells with
the tag `stable` are.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from dataclasses import is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from moeparity.bisection.runs.compare import KEY
from moeparity.bisection.runs.surroundings import environment

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
STABLE = "stable"
Cell = dict[str, Any]


def key() -> dict[str, str]:
    """What the digits and the tables of the outputs depend on."""
    fields_here = environment(torch.device("cpu"))
    return {**{name: fields_here[name] for name in KEY}, "pandas": version("pandas")}


def read(path: Path = NOTEBOOK) -> dict[str, Any]:
    """The notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return notebook


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    """The cells that are run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(notebook: dict[str, Any], folder: Path = NOTEBOOK.parent) -> list[list[dict[str, Any]]]:
    """What each code cell shows, run one after the other in a folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        return [_outputs("".join(cell["source"]), names, number) for number, cell in enumerate(code_cells(notebook), 1)]


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)  # noqa: S307
    shown: list[dict[str, Any]] = []
    if printed.getvalue():
        shown.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            # The data of a report fill pages.
            plain = f"<{type(value).__name__}>" if is_dataclass(value) else repr(value)
            data = {"text/html": _lines(value._repr_html_()), "text/plain": _lines(plain)}
        shown.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return shown


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Write the outputs."""
    notebook = read()
    for number, (cell, shown) in enumerate(zip(code_cells(notebook), outputs(notebook), strict=True), 1):
        cell["execution_count"], cell["outputs"] = number, shown
    notebook["metadata"]["made_on"] = key()
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
