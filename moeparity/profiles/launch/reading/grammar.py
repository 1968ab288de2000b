"""How a program takes its options apart: which names it has and how they may be shortened, as argparse does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moeparity.profiles.launch.source import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """How a parser reads options. `switches` take no value, and `several` take all words up to the next option; every
    other option takes one value.

    `spellings` map what is written (`--tp-size`, `-tp`, `--no-enforce-eager`) to the option's own name and to whether
    it is on; they are empty if the program's parser is not known. An option that begins as `shortened` says may be
    shortened. `underscores`: `_` may stand for `-`. `dotted`: `--name.key value` is an entry of a mapping. `positional`
    is the option for which a word behind `serve` stands; if it is `over` the others, it counts even if that option is
    given too. For a parser without `spellings`: `--no-` in front turns an option in `negated` off; an option that
    begins as one of `apart` takes no value behind `=`, and written with one it is an unknown option.
    """

    switches: frozenset[str]
    several: frozenset[str] = frozenset()
    spellings: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    shortened: tuple[str, ...] = ("-",)
    underscores: bool = True
    dotted: bool = False
    positional: str = ""
    over: bool = False
    negated: frozenset[str] = frozenset()
    apart: tuple[str, ...] = ()

    def option_of(self, text: str) -> tuple[str, bool]:
        """The option that is written so, and whether it is on. An option that the parser does not have keeps its own
        name.

        A word that differs from an option by its dashes, or by a `no` that the parser does not have, stays as it is
        written.
        """
        plain = text.lstrip("-").replace("-", "_")
        if not self.spellings:
            off = plain.removeprefix("no_")
            return (off, False) if off != plain and off in self.negated else (plain, True)
        head = text.replace("_", "-") if self.underscores and text.startswith("--") else text
        if head in self.spellings:
            return self.spellings[head]
        if head.startswith(self.shortened):
            meant = {option for spelling, option in self.spellings.items() if spelling.startswith(head)}
            if len(meant) == 1:
                return meant.pop()
        alike = {plain, plain.removeprefix("no_")} & {
            spelling.lstrip("-").replace("-", "_") for spelling in self.spellings
        }
        return text if alike else plain, True

    def canonical(self, entry: Entry) -> Entry:
        """An entry of a configuration file by the option's own name."""
        name, on = self.spellings.get(f"--{entry.name.replace('_', '-')}", (entry.name, True))
        if on:
            return replace(entry, name=name)
        return replace(entry, name=name, value=False) if entry.value in (True, "true", "True") else entry


def of_parser(
    synonyms: Iterable[tuple[str, ...]],
    *,
    switches: frozenset[str],
    toggles: frozenset[str],
    several: frozenset[str],
    short: frozenset[str] = frozenset(),
    inverse: bool = False,
    **others: Any,
) -> Grammar:
    """A parser with these options. Each has its names with underscores, its own name first; names in `short` have one
    dash.

    `--no-` in front switches an option in `toggles` off. With `inverse`, `--disable-` in place of `--enable-` does so
    too, and the other way round.
    """
    spellings: dict[str, tuple[str, bool]] = {}
    for first_name, *further in synonyms:
        for name in (first_name, *further):
            spellings[f"-{name}" if name in short else f"--{name.replace('_', '-')}"] = first_name, True
    for name in toggles:
        first_name = spellings[f"--{name.replace('_', '-')}"][0]
        for off in (f"no-{name.replace('_', '-')}", *(_inverse(name) if inverse else ())):
            spellings.setdefault(f"--{off}", (first_name, False))
    return Grammar(switches=switches | toggles, several=several, spellings=spellings, **others)


def _inverse(name: str) -> tuple[str, ...]:
    first, _, rest = name.replace("_", "-").partition("-")
    opposite = {"enable": "disable", "disable": "enable"}.get(first)
    return (f"{opposite}-{rest}",) if opposite else ()
