"""The reference: commands, keys of files, ops and the Python interface, from the code that reads or has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer.main

import moeparity
from moeparity.cli.commands import app
from moeparity.ops.attribute import Attribute
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from scripts.site.keys import keys
from scripts.site.table import paragraphs, table

OPS_HEAD = """As `moeparity show ops NAME` prints it. A choice is set as `"layers[*].moe.combine:accumulate": fp32`;
`docs/orders.md` says how an order is written, `docs/fidelity.md` how sure each value is."""


def commands() -> str:
    """Each command with its arguments, options and defaults."""
    group = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "As `moeparity COMMAND --help` prints it, which needs no site. Exit codes: `docs/trust.md`.",
    ]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        lines += ["", f"## moeparity {name}", "", paragraphs(command.help)]
        lines += ["", *table(("", "what it is"), _parameters(name, command))]
    return "\n".join(lines)


def _parameters(name: str, command: Any) -> list[tuple[str, ...]]:
    """Arguments and options as help prints them, with what it says of each."""
    context = command.make_context(name, [], resilient_parsing=True)
    records = (parameter.get_help_record(context) for parameter in command.params)
    return [(f"`{parameter}`", says) for parameter, says in filter(None, records)]


def ops() -> str:
    """Each op, and every choice that it leaves open."""
    lines = ["# Ops and their choices", "", OPS_HEAD]
    for op in OPS.values():
        lines += ["", f"## {op.name}", "", f"{op.says} Imitates: {op.source}".strip(), "", *_choices(op)]
    return "\n".join(lines)


def _choices(op: Op) -> Iterator[str]:
    rows = [(f"`{a.name}`", a.kind, f"`{a.default}`", _allowed(a), a.says) for a in op.attributes]
    if rows:
        yield from table(("choice", "kind", "default", "allowed", "what it decides"), rows)
    else:
        yield "Nothing about it can differ."


def _allowed(attribute: Attribute) -> str:
    words = [f"`{value}`" for value in attribute.values]
    rest = attribute.expected.split(", ")[len(attribute.values) :]
    return ", ".join(words + rest)


def python() -> str:
    """What `import moeparity` has, by mkdocstrings out of the docstrings, which imports nothing."""
    # Functions before the classes that they take and give.
    names = sorted(moeparity.__all__, key=lambda name: (name[0].isupper(), name))
    lines = ["# Python", "", "What `import moeparity` has. Torch is imported when something is first used."]
    return "\n".join([*lines, *(f"\n::: moeparity.{name}" for name in names)])


PAGES: Mapping[str, Callable[[], str]] = {"commands": commands, "files": keys, "ops": ops, "python": python}
"""Pages of the site below `reference/`, by their names."""
