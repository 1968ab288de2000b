"""Compares the records of all ranks: which fields differ, and which ranks have which value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from moeparity.output.words import quantity

Records = Mapping[int, Mapping[str, str]]
"""rank -> field -> canonical value."""

GROUPED = "collectives."
"""Fields that begin so belong to one process group each; only ranks that have them are compared."""

CHANGES = "weights."
"""Fields that begin so are tensors that changed; on a rank that lacks one it is unchanged."""
_LONGEST = 120


def differing(records: Records) -> Iterator[str]:
    """The fields that differ, in words: `envelope.init_cache: rank 0 false, ranks 1-3 true`."""
    for name in dict.fromkeys(name for record in records.values() for name in record):
        holders: dict[str, list[int]] = {}
        for rank, record in sorted(records.items()):
            if name in record or not name.startswith(GROUPED):
                holders.setdefault(record.get(name, _lacks(name)), []).append(rank)
        if len(holders) > 1:
            yield f"{name}: " + ", ".join(
                f"{ranks_in_words(ranks)} {_short(value)}" for value, ranks in holders.items()
            )


def difference(records: Records) -> str | None:
    """The first field that differs, and how many more do, in words; None if none does."""
    words = list(differing(records))
    if not words:
        return None
    others = len(words) - 1
    further = f" ({quantity(others, 'further field')} differ{'s' if others == 1 else ''})" if others else ""
    return words[0] + further


def first_finding(records: Records) -> str | None:
    """The first of the sentences that ranks say of themselves, with the ranks where not all say it, and how many more
    there are; None if no rank says anything.
    """
    holders: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        for sentence in record.values():
            holders.setdefault(sentence, []).append(rank)
    if not holders:
        return None
    sentence, ranks = next(iter(holders.items()))
    where = f"{ranks_in_words(ranks)}: " if len(ranks) < len(records) else ""
    more = f", and {len(holders) - 1} more" if len(holders) > 1 else ""
    return f"{where}{sentence}{more}"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    ordered = sorted(ranks)
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ordered) > 1 else ''} {words}"


def _lacks(name: str) -> str:
    return "unchanged" if name.startswith(CHANGES) else "absent"


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."
