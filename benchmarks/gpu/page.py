"""FOLDER/gpu.md, made of the results that lie in the folder: what was seen, on what, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.gpu.sections import SECTIONS, Result, cell, table

SCHEMA = "moeparity.benchmarks.gpu/1"

HEAD = """# On a GPU

Written by `python -m scripts.pages gpu` on a machine with a CUDA GPU, or by `python -m benchmarks.gpu --out FOLDER`,
which measures again what lacks a result there."""


def result_file(folder: Path, part: str) -> Path:
    """Where a part leaves its result."""
    return folder / f"{part}.json"


def write(folder: Path, parts: Sequence[str], failures: Mapping[str, str]) -> tuple[Path, bool]:
    """Write the page; its path, and whether every part is there and has nothing that should be otherwise.

    `failures` say of parts without a result how they ended.
    """
    results = {
        part: json.loads(result_file(folder, part).read_text("utf-8"))
        for part in parts
        if result_file(folder, part).exists()
    }
    path = folder / "gpu.md"
    path.write_text("\n\n".join(blocks(results, parts, failures)) + "\n", "utf-8")
    return path, results.keys() == set(parts) and not any(list(wrongs(results[part])) for part in parts)


def blocks(results: Mapping[str, Result], parts: Sequence[str], failures: Mapping[str, str]) -> Iterator[str]:
    """The page in Markdown: verdict, hardware, settings, a section for each part."""
    yield HEAD
    yield _verdict(results, parts)
    if results:
        yield "## Machine and versions"
        yield table(("what", "is"), common(results, "machine") + common(results, "date", "date"))
        yield "## Settings that decide bits"
        yield "As they stood when a part ended. Nothing here was set by the benchmark."
        yield table(("setting", "value"), common(results, "settings"))
    for part in parts:
        title, section = SECTIONS[part]
        yield f"## {title}"
        if part not in results:
            yield f"**Not measured**: {cell(failures.get(part, 'not asked for yet'))}."
            continue
        if results[part]["tiny"]:
            yield "**Tiny sizes, as the tests take them: no measurement.**"
        yield from section(results[part])
        if results[part]["not_run"]:
            yield f"**Not run**, its time was over: {cell('; '.join(results[part]['not_run']))}."
        yield f"{results[part]['seconds']:.0f} s."


def _verdict(results: Mapping[str, Result], parts: Sequence[str]) -> str:
    lines = [f"- {part}: {complaint}" for part in parts if part in results for complaint in wrongs(results[part])]
    lines += [f"- {part}: not measured" for part in parts if part not in results]
    return "\n".join(["**Not as it should be:**", "", *map(cell, lines)]) if lines else "Everything is as it should be."


def wrongs(result: Result) -> Iterator[str]:
    """What is not as it should be in a part's result, a phrase each."""
    if result["not_run"]:
        yield f"{len(result['not_run'])} not run for want of time"
    rows = result.get("rows", ())
    different = [row for row in rows if row.get("different")]
    if different:
        yield f"{len(different)} of {len(rows)} rows have other bits than transformers"
    refused = [row for row in rows if row.get("refused")]
    if refused:
        yield f"{len(refused)} of {len(rows)} rows could not be compared in every case"
    others = (row for row in rows if not row.get("same_as_cpu", True))
    yield from (f"{row['order']}, {row['dtype']}: other bits than on the CPU" for row in others)
    for order in dict.fromkeys(row["order"] for row in result.get("kernels", ()) if row["share"]):
        yield f"{order}: torch's kernel gives other bits than the order stated of it"
    yield from (f"{row['profile']}: other bits than transformers" for row in rows if not row.get("same", True))
    if not result.get("holds", True):
        yield "a bisection took more memory than its bound"


def common(results: Mapping[str, Result], key: str, name: str = "") -> list[tuple[str, str]]:
    """Names and values that results have under a key, a value for each group of parts that agree on it."""
    fields = {part: {name: result[key]} if name else result[key] for part, result in results.items()}
    names = dict.fromkeys(field for values in fields.values() for field in values)
    rows = []
    for field in names:
        parts_of: dict[str, list[str]] = {}
        for part, values in fields.items():
            parts_of.setdefault(values.get(field, "not told"), []).append(part)
        rows += [
            (field if len(parts_of) == 1 else f"{field} ({_joined(parts)})", value) for value, parts in parts_of.items()
        ]
    return rows


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(parts)
