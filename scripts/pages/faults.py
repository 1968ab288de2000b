"""The table of docs/faults.md, from the files in `graphs/faults`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from moeparity.plan.faults.fault import Fault
from moeparity.plan.faults.reader import shipped_faults


def table(_: str = "") -> str:
    """A row for each fault, in the order of their names."""
    return "\n".join(_rows())


def _rows() -> Iterator[str]:
    yield "| fault | is | stands at | left open | looks like | known from |"
    yield "|---|---|---|---|---|---|"
    yield from map(_row, shipped_faults().values())


def _row(fault: Fault) -> str:
    spec = fault.spec
    sits = ", ".join(f"`{op}`" for op in spec.sits.op)
    if spec.sits.node:
        sits += f": {', '.join(spec.sits.node)}"
    if spec.sits.without:
        sits += f", without {', '.join(spec.sits.without)}"
    values = "; ".join(f"`{name}`: {free.says}" for name, free in spec.values.items())
    issues = "; ".join(f"{_link(source.where)}: {source.says}" for source in spec.known_from)
    says = re.sub(r"{(\w+)}", r"`\1`", spec.says)
    cells = (f"`{fault.name}`", says, sits, values, spec.looks_like.rstrip("."), issues or "none found")
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _link(where: str) -> str:
    """An issue or a pull request by its number as a link."""
    issue = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", where)
    return where if issue is None else f"[{where}](https://github.com/{issue[1]}/issues/{issue[2]})"
