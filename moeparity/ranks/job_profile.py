"""Writes the environment report of a job as a profile with the choices that it shows, and no others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from moeparity.errors import RankError, Where, display_path
from moeparity.ranks.differing_fields import differing, ranks_in_words
from moeparity.ranks.journal import stories
from moeparity.ranks.shown import ShownChoice, shown

_SHOWN_ASIDE = ("dtype", "compiled")
"""Fields of models that a report shows and no profile states."""


def environment_of(folder: Path) -> Mapping[str, str]:
    """The environment report that all ranks of a job wrote. Raises RankError if one has none, or if they differ."""
    job_stories = stories(folder)
    without = [story.rank for story in job_stories if not story.environment]
    if without:
        raise RankError(f"{Where(folder)}: {ranks_in_words(without)} wrote no environment report. Did it end at start?")
    words = list(differing({story.rank: story.environment for story in job_stories}))
    if words:
        raise RankError(
            f"{Where(folder)}: the ranks' environments differ, so that no profile describes them all: {words[0]}."
        )
    return job_stories[0].environment


def profile_text(folder: Path, name: str) -> str:
    """The YAML of a profile with the choices that a job's environment report shows. Raises RankError if it shows
    none.
    """
    fields = environment_of(folder)
    choices = list(shown(fields))
    if not choices:
        raise RankError(
            f"{Where(folder)}: its environment report shows no choice that a profile states. Give the guard the model,"
            " so that the report shows its attention."
        )
    lines = [
        f"# What the environment report of {display_path(folder)} shows, and nothing else: all other choices are open.",
        "# Write `extends: PROFILE` for these, and you get that profile as this job ran it.",
        *(f"# Shown, and no choice of a profile: {line}" for line in _aside(fields)),
        f"kind: profile\nname: {json.dumps(name)}\nrules:",
        *_rules(folder, fields, choices),
    ]
    return "\n".join(lines)


def _rules(folder: Path, fields: Mapping[str, str], choices: Sequence[ShownChoice]) -> list[str]:
    lines = []
    for choice in choices:
        source = f"environment report of {display_path(folder)}: {choice.field} is {fields[choice.field]}"
        lines += [
            f"  - op: {choice.op}",
            f"    set: {{{choice.attribute}: {choice.value}}}",
            f"    evidence: {{level: inferred, source: {json.dumps(source)}}}",
        ]
    return lines


def _aside(fields: Mapping[str, str]) -> list[str]:
    """Comments on what changes numerics and is shown, but belongs elsewhere in a recipe or is no choice."""
    of_models = [f"{name} {text}" for name, text in fields.items() if name.rpartition(".")[2] in _SHOWN_ASIDE]
    reduced = [f"{name} {text}" for name, text in fields.items() if "reduced_precision" in name]
    return [line for line in (*of_models, *reduced) if line.isprintable()]
