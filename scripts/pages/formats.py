"""The table of docs/formats.md, from the formats of quantised weights that are read."""

from __future__ import annotations

from moeparity.inputs.weights.formats import FORMATS


def table(_: str = "") -> str:
    """A row for each format."""
    rows = ["| format | `quant_method` | tensors | number | evidence |", "|---|---|---|---|---|"]
    for form in FORMATS.values():
        methods = ", ".join(f"`{method}`" for method in form.methods if method)
        tensors = ", ".join(f"`{ending}`" for ending in form.names.values())
        rows.append(f"| `{form.name}` | {methods} | {tensors} | {form.rule} | {form.evidence}: {form.held_to} |")
    return "\n".join(rows)
