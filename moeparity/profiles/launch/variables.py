"""Environment variables that a framework's options set for its workers: `policy.megatron_cfg.env_vars.NCCL_ALGO`."""

from __future__ import annotations

from dataclasses import replace

from moeparity.profiles.launch.options import Program
from moeparity.profiles.launch.source import Entry, Note, Source, Unresolved


def with_variables(source: Source, program: Program) -> Source:
    """A source whose options below the program's keys are variables; those of the other side's workers stay options."""
    values = {entry.name: entry.value for entry in source.options}
    reached = program.variables(values)
    roles = {name: option.role for option in program.options if option.environment for name in option.names}
    options: list[Entry] = []
    variables = {entry.name: entry for entry in source.environment}
    notes = list(source.notes)
    for entry in source.options:
        prefix = next((prefix for prefix in reached if f"{entry.name}.".startswith(prefix)), "")
        name = entry.name.removeprefix(prefix)
        if prefix and isinstance(entry.value, Unresolved) and f"{entry.name}." == prefix:
            says = f"`{entry.name}` is not resolved: the variables that it sets are not known"
            notes.append(Note(says=says, where=entry.where, opens="environment"))
        elif prefix and f"{entry.name}." != prefix and (roles.get(name) in (None, *reached[prefix])):
            variables[name] = replace(entry, name=name)
        else:
            options.append(entry)
    return replace(source, options=tuple(options), environment=tuple(variables.values()), notes=tuple(notes))
