"""`python -m tests.engines.functions`: every function of another project that is run here, as a table for docs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.engines.all_engines import ENGINES
from tests.engines.function import Engine, Function, compared, unequal
from tests.verified import DTYPES

HEAD = "| function | file | cases | numbers | unequal | values it shows | assumed |"
RULE = "|---|---|---|---|---|---|---|"


def main() -> None:
    print("\n".join(lines()))


def lines() -> Iterator[str]:
    """A table for each engine, and how many there are."""
    forms = [(engine.name, function.name) for engine in ENGINES for function in engine.functions]
    functions = {(engine, name.partition(",")[0]) for engine, name in forms}
    versions = {engine.partition(",")[0] for engine, _ in forms}
    yield f"{len(functions)} functions in {len(forms)} forms, of {len(versions)} projects and versions."
    for engine in ENGINES:
        print(engine.name, file=sys.stderr)
        yield from ("", f"### {engine.name}", "", HEAD, RULE)
        yield from (row(engine, function) for function in engine.functions)


def row(engine: Engine, function: Function) -> str:
    numbers = differing = 0
    for _, theirs, ours in compared(engine, function):
        numbers += sum(x.numel() for x in theirs.values())
        differing += unequal(theirs, ours)
    cells = (function.name, function.file, len(function.cases), numbers, differing, values(function), function.assumed)
    return f"| {' | '.join(map(str, cells))} |"


def values(function: Function) -> str:
    """The choices that its cases tell from others, each by the attribute and what it is here."""
    at = function.at(next(iter(function.cases.values())))
    shown = {}
    for change in function.others:
        for address in change:
            op, _, attribute = address.partition(":")
            if attribute != "read" and attribute in at[op]:
                shown[address] = DTYPES.get(at[op][attribute], at[op][attribute])
    return ", ".join(f"`{address}={value}`" for address, value in shown.items())


if __name__ == "__main__":
    main()
